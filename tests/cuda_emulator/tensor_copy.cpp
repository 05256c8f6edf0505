// cp.async.bulk.tensor: copies the box of a tensor at given coordinates into shared memory.
#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

#include "cuda_emulator/interpreter.hpp"
#include "cuda_emulator/lanes.hpp"
#include "cuda_emulator/report.hpp"
#include "cuda_emulator/tensor_map.hpp"

namespace gatefold::cuda_emulator {
namespace {

/// The part of [first, first + count) that is in [0, extent).
struct Range {
  std::int64_t begin, end;
};
Range inside(std::int64_t first, std::int64_t count, std::uint64_t extent) {
  const auto limit = static_cast<std::int64_t>(extent);
  return {std::clamp<std::int64_t>(first, 0, limit), std::clamp<std::int64_t>(first + count, 0, limit)};
}

}  // namespace

/// Returns the tensor map at a generic address: in a parameter of the kernel, or in constant or global memory.
TensorMap Warp::tensor_map(const Instruction& in, int lane) {
  const std::uint64_t address = read(in[1], lane);
  const auto within = [&](const char* base, std::size_t size) {
    return address - reinterpret_cast<std::uint64_t>(base) < size;
  };
  if (within(local(lane), local_bytes_) || within(block_.shared_.data(), block_.shared_.size())) {
    fail("a tensor map in local or shared memory: expected a __grid_constant__ parameter, constant or global memory",
         in, lane);
  }
  char bytes[sizeof(CUtensorMap)];
  constexpr std::size_t alignment = 64;
  for (std::size_t at = 0; at < sizeof bytes; at += alignment) {
    Places places;
    locate(in, {in[1], static_cast<std::int64_t>(at), Space::generic, alignment, false}, 1u << lane, places);
    std::memcpy(bytes + at, places[lane], alignment);
  }
  TensorMap map;
  std::memcpy(&map, bytes, sizeof map);
  if (map.magic != TensorMap::magic_word) fail("no tensor map: nobody has encoded one there", in, lane);
  if (map.rank != in.elements) {
    fail("a tensor map of " + std::to_string(map.rank) + " dimensions, expected " + std::to_string(in.elements), in,
         lane);
  }
  return map;
}

/// Reads global memory in one thread, in pieces as large as their alignment permits.
void Warp::read_global(const Instruction& in, int lane, std::uint64_t address, std::size_t bytes, char* to) {
  while (bytes > 0) {
    const std::size_t piece = std::min<std::size_t>({16, address & -address, std::bit_floor(bytes)});
    Addresses addresses;
    Places places;
    addresses[lane] = address;
    locate_global(in, {in[1], 0, Space::global, piece, false}, 1u << lane, addresses, places);
    std::memcpy(to, places[lane], piece);
    address += piece;
    to += piece;
    bytes -= piece;
  }
}

/// Executes the copy. The operands are [to, map, coordinates ..., mbarrier]. Elements outside of the tensor are zero,
/// but count at the mbarrier.
void Warp::copy_tensor(const Instruction& in, std::uint32_t lanes) {
  for_lanes(lanes, [&](int lane) {
    const TensorMap map = tensor_map(in, lane);
    const auto shared_address = [&](const Operand& operand, std::int64_t offset) {
      return (read(operand, lane) + static_cast<std::uint64_t>(offset)) & 0xffffffff;
    };
    const std::uint64_t to = shared_address(in[0], in.offset);
    if (to % 128 != 0) fail_alignment(in, to, 128, lane);
    const auto coordinate = [&](std::uint32_t d) {
      return std::int64_t{static_cast<std::int32_t>(static_cast<std::uint32_t>(read(in[2 + d], lane)))};
    };
    const Range columns = inside(coordinate(0), map.box[0], map.extent[0]);
    const std::size_t row_bytes = map.row_bytes();
    std::vector<char> box(map.rows() * row_bytes), values(row_bytes);
    for (std::size_t row = 0; row < map.rows(); ++row) {
      std::uint64_t from = map.address;
      bool exists = columns.begin < columns.end;
      std::size_t index = row;
      for (std::uint32_t d = 1; d < map.rank; index /= map.box[d++]) {
        const std::int64_t at = coordinate(d) + static_cast<std::int64_t>(index % map.box[d]);
        exists = exists && static_cast<std::uint64_t>(at) < map.extent[d];
        from += static_cast<std::uint64_t>(at) * map.stride[d];
      }
      std::fill(values.begin(), values.end(), 0);
      if (exists) {
        const auto bytes = [&](std::int64_t elements) { return static_cast<std::uint64_t>(elements) * map.stride[0]; };
        read_global(in, lane, from + bytes(columns.begin), bytes(columns.end - columns.begin),
                    values.data() + bytes(columns.begin - coordinate(0)));
      }
      for (std::size_t chunk = 0; chunk < row_bytes; chunk += 16) {
        std::memcpy(box.data() + (map.swizzled(to + row * row_bytes + chunk) - to), values.data() + chunk, 16);
      }
    }
    begin_bulk_copy(in, lane, to, shared_address(in[2 + map.rank], in.second_offset), std::move(box));
  });
}

}  // namespace gatefold::cuda_emulator
