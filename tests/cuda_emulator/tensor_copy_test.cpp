// Tests cp.async.bulk.tensor: the places and times at which data arrives in shared memory, and faults.
#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "cuda_emulator/encoding.hpp"
#include "cuda_emulator/evaluate.hpp"

namespace gatefold::cuda_emulator {
namespace {

using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;
using Coordinates = std::vector<std::int64_t>;

/// A tensor of 16-bit elements in global memory. Its rows are 16 bytes longer than necessary. No element is zero.
struct Tensor {
  explicit Tensor(std::vector<cuuint64_t> extents_) : extents(std::move(extents_)), data(elements(), 0xdddd) {
    for (std::size_t i = 0; i < data.size; ++i) data[i] = static_cast<u16>(i % 65521 + 1);
  }
  std::vector<cuuint64_t> strides() const {
    std::vector<cuuint64_t> bytes;
    u64 stride = (extents[0] * 2 + 15) / 16 * 16 + 16;
    for (std::size_t d = 1; d < extents.size(); stride *= extents[d++]) bytes.push_back(stride);
    return bytes;
  }
  std::size_t elements() const { return extents.size() == 1 ? extents[0] : strides().back() / 2 * extents.back(); }
  /// Returns the element at a place, or zero outside of the tensor.
  u16 at(const Coordinates& place) {
    u64 index = static_cast<u64>(place[0]);
    for (std::size_t d = 0; d < place.size(); ++d) {
      if (place[d] < 0 || static_cast<u64>(place[d]) >= extents[d]) return 0;
      if (d > 0) index += strides()[d - 1] / 2 * static_cast<u64>(place[d]);
    }
    return data[index];
  }
  Encoding encoding(std::vector<cuuint32_t> box, CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_NONE) const {
    return {.address = reinterpret_cast<std::uintptr_t>(data.data),
            .extents = extents,
            .strides = strides(),
            .box = std::move(box),
            .swizzle = swizzle};
  }

  std::vector<cuuint64_t> extents;
  DeviceArray<u16> data;
};

/// A tensor map in global memory.
DeviceArray<CUtensorMap> map_of(const Encoding& encoding) {
  options().compute_capability = 90;
  CUtensorMap map;
  REQUIRE(encode(encoding, map) == CUDA_SUCCESS);
  return DeviceArray<CUtensorMap>(1, map);
}

std::string list(const Coordinates& place) {
  std::string text = "{";
  for (const auto c : place) text += std::to_string(c) + ", ";
  text.replace(text.size() - 2, 2, "}");
  return text;
}

/// Returns a copy instruction with the operands `[%r1 + offset], [%d1, {..}], [%r2]`.
std::string copy(const Coordinates& place, u32 offset = 0, const std::string& space = "shared::cluster") {
  return "cp.async.bulk.tensor." + std::to_string(place.size()) + "d." + space +
         ".global.tile.mbarrier::complete_tx::bytes [%r1+" + std::to_string(offset) + "], [%d1, " + list(place) +
         "], [%r2];\n";
}
std::string expect(std::size_t bytes) {
  return "mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%r2], " + std::to_string(bytes) + ";\n";
}
std::string wait(int parity) {
  const std::string label = "WAIT" + std::to_string(parity);
  return label + ": mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r2], " + std::to_string(parity) + "; @!%p1 bra " +
         label + ";\n";
}

/// Declares shared memory of the given number of bytes at %r1, aligned to 1024, with an mbarrier at %r2 for one
/// arrival.
std::string shared(std::size_t bytes) {
  return ".shared .align 1024 .b8 s[" + std::to_string(bytes) +
         "];\n.shared .align 8 .b8 b[8];\n"
         "mov.u32 %r1, s; mov.u32 %r2, b; mbarrier.init.shared.b64 [%r2], 1;\n";
}

/// Returns the contents of shared memory after the lines of PTX, as 16-bit words.
std::vector<u16> shared_after(const std::string& lines, const DeviceArray<CUtensorMap>& map, std::size_t bytes) {
  const DeviceArray<u16> out(bytes / 2);
  run_body(shared(bytes) + lines +
               "mov.u32 %r5, 0;\n"
               "SAVE: add.u32 %r6, %r1, %r5; ld.shared.u32 %r7, [%r6]; cvt.u64.u32 %d5, %r5; add.s64 %d6, %d0, %d5;\n"
               "st.global.u32 [%d6], %r7; add.u32 %r5, %r5, 4; setp.lt.u32 %p2, %r5, " +
               std::to_string(bytes) + "; @%p2 bra SAVE;",
           out.data, map.data);
  return out.values();
}

/// Returns the contents of shared memory after one copy of a box at `place` to the offset `to`, by the definition,
/// element by element. With a swizzle of w bytes, the chunk of 16 bytes at c in each piece of w bytes moves to c XOR
/// (the number of the line of 128 bytes, modulo w / 16). Bytes that are not copied are poison.
std::vector<u16> expected(Tensor& tensor, const Encoding& e, const Coordinates& place, std::size_t bytes,
                          std::size_t to = 0) {
  std::vector<u16> words(bytes / 2, 0xcbcb);
  const std::size_t width = e.swizzle == CU_TENSOR_MAP_SWIZZLE_NONE  ? 16
                            : e.swizzle == CU_TENSOR_MAP_SWIZZLE_32B ? 32
                            : e.swizzle == CU_TENSOR_MAP_SWIZZLE_64B ? 64
                                                                     : 128,
                    chunks = width / 16;
  std::size_t count = 1;
  for (const auto extent : e.box) count *= extent;
  for (std::size_t i = 0; i < count; ++i) {
    Coordinates element = place;
    std::size_t rest = i;
    for (std::size_t d = 0; d < element.size(); rest /= e.box[d++]) {
      element[d] += static_cast<std::int64_t>(rest % e.box[d]);
    }
    const std::size_t linear = to + 2 * i, line = linear / 128, chunk = linear / 16 % chunks;
    const std::size_t at = linear / width * width + (chunk ^ line % chunks) * 16 + linear % 16;
    words[at / 2] = tensor.at(element);
  }
  return words;
}

/// Returns shared memory after one copy and the wait for it.
std::vector<u16> loaded(const Encoding& e, const Coordinates& place, std::size_t bytes, std::size_t to = 0) {
  std::size_t box = 2;
  for (const auto extent : e.box) box *= extent;
  return shared_after(expect(box) + copy(place, static_cast<u32>(to)) + wait(0), map_of(e), bytes);
}

TEST_CASE("tensor copy: writes boxes row by row with every swizzle") {
  Tensor matrix({200, 40});
  for (const auto& [columns, kind] :
       {std::pair{24u, CU_TENSOR_MAP_SWIZZLE_NONE}, std::pair{64u, CU_TENSOR_MAP_SWIZZLE_NONE},
        std::pair{16u, CU_TENSOR_MAP_SWIZZLE_32B}, std::pair{32u, CU_TENSOR_MAP_SWIZZLE_64B},
        std::pair{64u, CU_TENSOR_MAP_SWIZZLE_128B}}) {
    const CUtensorMapSwizzle swizzle = kind;
    CAPTURE(swizzle);
    const Encoding e = matrix.encoding({columns, 24}, swizzle);
    CHECK(loaded(e, {17, 5}, 4096) == expected(matrix, e, {17, 5}, 4096));
    // The swizzle depends on the address, not on the position in the tile.
    CHECK(loaded(e, {17, 5}, 4096, 384) == expected(matrix, e, {17, 5}, 4096, 384));
  }
}

TEST_CASE("swizzle of 128 bytes: moves chunk to chunk XOR row") {
  Tensor matrix({64, 8});
  const auto words = loaded(matrix.encoding({64, 8}, CU_TENSOR_MAP_SWIZZLE_128B), {0, 0}, 1024);
  for (int i = 0; i < 8; ++i) {
    CHECK(words[3 * 64 + 6 * 8 + i] == matrix.at({5 * 8 + i, 3}));  // 5 XOR 3 = 6
    CHECK(words[7 * 64 + 7 * 8 + i] == matrix.at({i, 7}));
  }
}

TEST_CASE("tensor copy: works in one, three and five dimensions") {
  Tensor vector({100}), tensor({72, 6, 5}), five({16, 3, 3, 3, 3});
  const Encoding one = vector.encoding({32}), three = tensor.encoding({64, 4, 2}, CU_TENSOR_MAP_SWIZZLE_128B),
                 all = five.encoding({8, 2, 2, 2, 2});
  CHECK(loaded(one, {30}, 128) == expected(vector, one, {30}, 128));
  CHECK(loaded(three, {3, 1, 2}, 1024) == expected(tensor, three, {3, 1, 2}, 1024));
  CHECK(loaded(all, {5, 1, 0, 1, 2}, 256) == expected(five, all, {5, 1, 0, 1, 2}, 256));

  std::vector<float> values(64);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i) + 0.5f;
  const DeviceArray<float> floats(values);
  const auto map = map_of({.type = CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
                           .address = reinterpret_cast<std::uintptr_t>(floats.data),
                           .extents = {16, 4},
                           .strides = {64},
                           .box = {8, 2}});
  const auto words = shared_after(expect(64) + copy({6, 2}) + wait(0), map, 64);
  std::vector<float> got(16), wanted;
  std::memcpy(got.data(), words.data(), 64);
  for (const std::size_t row : {2, 3}) {
    for (std::size_t column = 6; column < 14; ++column) wanted.push_back(values[16 * row + column]);
  }
  CHECK(got == wanted);
}

TEST_CASE("tensor copy: out-of-bounds elements are zero and count as copied") {
  Tensor matrix({70, 20}), tensor({64, 6, 5});
  const Encoding flat = matrix.encoding({64, 8}, CU_TENSOR_MAP_SWIZZLE_128B), deep = tensor.encoding({64, 4, 2});
  for (const Coordinates& place : {Coordinates{-5, 3},
                                   {9, 3},
                                   {0, -3},
                                   {0, 17},
                                   {-63, -7},
                                   {69, 19},
                                   {-64, 0},
                                   {70, 0},
                                   {0, -8},
                                   {0, 20},
                                   {-2147483647, 0},
                                   {2147483647, 2147483647}}) {
    CAPTURE(list(place));
    CHECK(loaded(flat, place, 1024) == expected(matrix, flat, place, 1024));
  }
  for (const Coordinates& place : {Coordinates{-1, -1, -1}, {1, 3, 4}, {0, 0, -1}, {0, 0, 5}}) {
    CAPTURE(list(place));
    CHECK(loaded(deep, place, 1024) == expected(tensor, deep, place, 1024));
  }
}

TEST_CASE("tensor copy: accepts a map parameter, cache hint and shared::cta") {
  Tensor matrix({64, 8});
  const Encoding e = matrix.encoding({64, 4});
  CUtensorMap map;
  options().compute_capability = 90;
  REQUIRE(encode(e, map) == CUDA_SUCCESS);
  const DeviceArray<u32> out(1);
  const auto module = read(
      ".version 8.7\n.target sm_90\n.address_size 64\n"
      ".visible .entry k(.param .u64 k_param_0, .param .align 128 .b8 k_param_1[128])\n{\n"
      ".reg .pred %p<4>; .reg .b32 %r<9>; .reg .b64 %d<9>;\n"
      "ld.param.u64 %d0, [k_param_0]; mov.b64 %d2, k_param_1; cvta.param.u64 %d1, %d2; prefetch.tensormap [%d1];\n"
      "fence.proxy.tensormap::generic.acquire.gpu [%d1], 128;\n"
      "mov.u64 %d3, 0x14f0000000000000;\n" +
      shared(512) + expect(512) +
      "cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%r1], [%d1, {0, 4}], [%r2], %d3;\n" +
      wait(0) + "ld.shared.u32 %r3, [s+132]; st.global.u32 [%d0], %r3;\nret;\n}\n");
  Launch work{{}, {}, 0, std::vector<char>(256)};
  std::memcpy(work.parameters.data(), &out.data, 8);
  std::memcpy(work.parameters.data() + 128, &map, sizeof map);
  launch(*module->find("k"), work);
  CHECK(out.data[0] == (u32{matrix.at({2, 5})} | u32{matrix.at({3, 5})} << 16));
}

TEST_CASE("tensor copy: two copies can share an mbarrier") {
  Tensor matrix({64, 16});
  const Encoding e = matrix.encoding({64, 4});
  const auto map = map_of(e);
  auto both = expected(matrix, e, {0, 3}, 1024);
  const auto second = expected(matrix, e, {0, 9}, 1024, 512);
  std::copy(second.begin() + 256, second.end(), both.begin() + 256);
  const std::string copies = copy({0, 3}) + copy({0, 9}, 512);
  CHECK(shared_after(expect(1024) + copies + wait(0), map, 1024) == both);
  CHECK(shared_after(copies + expect(1024) + wait(0), map, 1024) == both);

  // Without a wait, or after a wait for a different phase, the values are NaN.
  for (const std::string& early : {std::string(), wait(1)}) {
    const DeviceArray<u32> out(1);
    run_body(
        shared(1024) + expect(1024) + copies + early + "ld.shared.u32 %r3, [s]; st.global.u32 [%d0], %r3;\n" + wait(0),
        out.data, map.data);
    CHECK(out.data[0] == 0xffffffff);
  }
}

TEST_CASE("mbarrier: a phase with wrong expected bytes faults") {
  Tensor matrix({64, 16});
  const auto map = map_of(matrix.encoding({64, 4}));
  options().longest_block = 100000;
  const auto fault = [&](const std::string& lines) {
    return fault_of([&] { shared_after(lines + wait(0), map, 1024); });
  };
  CHECK(mentions(fault(expect(256) + copy({0, 0})), "has got 256 bytes more than it expects"));
  CHECK(mentions(fault(expect(1024) + copy({0, 0})), "waits for 512 bytes"));
  // The mbarrier expects the bytes of only one of two copies, so the phase ends with the first copy.
  const std::string late = fault(expect(512) + copy({0, 0}) + copy({0, 4}, 512));
  CHECK(mentions(late, "a bulk copy that no thread has waited for, at the end of its block: 512 bytes to 0x200"));
  CHECK(mentions(late, "cp.async.bulk.tensor.2d"));
}

TEST_CASE("tensor copy: an unordered write of another block races") {
  Tensor matrix({64, 4});
  const auto map = map_of(matrix.encoding({64, 4}));
  const auto body = shared(512) +
                    "mov.u32 %r4, %ctaid.x; setp.eq.u32 %p3, %r4, 1; @%p3 st.global.u16 [%d0], %h0; @%p3 ret;\n" +
                    expect(512) + copy({0, 0}) + wait(0);
  run_body(body, matrix.data.data, map.data, {{2}, {1}});
  REQUIRE(races().size() == 1);
  CHECK(mentions(races()[0], "cp.async.bulk.tensor"));
  races().clear();
}

TEST_CASE("invalid tensor copy: each kind has its own message") {
  Tensor matrix({64, 16});
  const Encoding e = matrix.encoding({64, 4}, CU_TENSOR_MAP_SWIZZLE_128B);
  const auto map = map_of(e);
  const DeviceArray<u32> out(4);
  const auto fault_with = [&](const void* where, const std::string& lines) {
    return fault_of([&] { run_body(shared(1024) + lines, out.data, where); });
  };
  const auto fault = [&](const std::string& lines) { return fault_with(map.data, lines); };
  CHECK(mentions(fault(copy({0, 0}, 64)), "misaligned access of 128 bytes at 0x40"));
  CHECK(mentions(fault(copy({0, 0}, 640)), "out of bounds shared bulk copy of 512 bytes to 0x280"));
  CHECK(mentions(fault("add.u32 %r2, %r2, 8;\n" + copy({0, 0})), "no mbarrier: nobody has initialised one at 0x408"));
  CHECK(mentions(fault(copy({0, 0, 0})), "a tensor map of 2 dimensions, expected 3"));

  // The map.
  const DeviceArray<CUtensorMap> zeros(1);
  CHECK(mentions(fault_with(zeros.data, copy({0, 0})), "no tensor map: nobody has encoded one there"));
  CHECK(mentions(fault("add.s64 %d1, %d1, 32;\n" + copy({0, 0})), "misaligned access of 64 bytes"));
  CHECK(mentions(fault_with(&e, copy({0, 0})), "out of bounds global load"));
  CHECK(mentions(fault(".local .align 128 .b8 m[128];\nmov.u64 %d3, m; cvta.local.u64 %d1, %d3;\n" + copy({0, 0})),
                 "a tensor map in local or shared memory: expected a __grid_constant__ parameter"));
  CHECK(mentions(fault("mov.u64 %d3, s; cvta.shared.u64 %d1, %d3;\n" + copy({0, 0})),
                 "a tensor map in local or shared memory"));

  // A tensor that is larger than its memory. Only the parts that are read must exist.
  Encoding large = e;
  large.extents = {64, 17};
  const auto beyond = map_of(large);
  CHECK(mentions(fault_with(beyond.data, copy({0, 13})), "out of bounds global load of 16 bytes"));
  CHECK(fault_with(beyond.data, expect(512) + copy({0, 12}) + wait(0)).empty());

  // Instructions that are not modelled, and a wrong number of coordinates.
  const std::string tail = ".mbarrier::complete_tx::bytes";
  CHECK(mentions(fault("cp.async.bulk.tensor.2d.shared::cluster.global" + tail +
                       ".multicast::cluster [%r1], [%d1, {0, 0}], [%r2], %h0;"),
                 "refused: clusters are not modelled"));
  CHECK(mentions(
      fault("cp.async.bulk.tensor.3d.shared::cluster.global.im2col" + tail + " [%r1], [%d1, {0, 0, 0}], [%r2], {%h0};"),
      "refused: "));
  CHECK(mentions(fault("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%d1, {0, 0}], [%r1];"),
                 "refused: a copy of tensors that the emulator does not know: it knows loads"));
  CHECK(mentions(fault("cp.async.bulk.tensor.2d.shared::cluster.global" + tail + " [%r1], [%d1, {0}], [%r2];"),
                 "refused: as many coordinates as the copy has dimensions"));
}

}  // namespace
}  // namespace gatefold::cuda_emulator
