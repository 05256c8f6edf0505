// Reads any bytes as a safetensors file whose tensors can have scales for blocks (FP8 and MXFP4). Each tensor is read
// or refused. A tensor that is read has as many elements as its shape says, whether it is read as a whole or in two
// parts. The reader holds at most 128 times the size of the file plus 64 KiB.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "fuzz/fuzz.hpp"
#include "gatefold/io/tensor_files.hpp"

using namespace gatefold;

namespace {

/// Returns true if f ends without a FileError.
template <class F>
bool is_read(const F& f) {
  try {
    f();
    return true;
  } catch (const FileError&) {
    return false;
  }
}

void check_tensor(const io::TensorFiles& files, const io::TensorInfo& info) {
  const std::size_t count = io::TensorFiles::count(info);
  std::vector<float> floats;
  const bool reads = is_read([&] { floats = files.read<float>(info.name); });
  std::vector<double> doubles;
  FUZZ_REQUIRE(is_read([&] { doubles = files.read<double>(info.name); }) == reads);
  std::vector<Index> integers;
  if (is_read([&] { integers = files.read<Index>(info.name); })) FUZZ_REQUIRE(integers.size() == count);
  if (!reads) return;
  FUZZ_REQUIRE(floats.size() == count && doubles.size() == count);
  if (!files.has_scales(info.name)) return;
  FUZZ_REQUIRE(info.dtype == "F32");
  const std::vector<std::byte> whole = files.read_bytes(info.name);
  FUZZ_REQUIRE(whole.size() == 4 * count && (count == 0 || std::memcmp(whole.data(), floats.data(), 4 * count) == 0));
  if (count == 0 || count % 2 != 0) return;
  const auto even = files.read_part(info.name, {1, 0, 2}), odd = files.read_part(info.name, {1, 1, 2});
  FUZZ_REQUIRE(even.size() == 2 * count && odd.size() == 2 * count);
  for (std::size_t i = 0; i < count; ++i)
    FUZZ_REQUIRE(std::memcmp((i % 2 == 0 ? even : odd).data() + i / 2 * 4, &floats[i], 4) == 0);
}

}  // namespace

int fuzz::blocks(const std::uint8_t* bytes, std::size_t size) {
  const fuzz::File file(bytes, size);
  FUZZ_REQUIRE(fuzz::peak([&] {
                 is_read([&] {
                   const io::TensorFiles files(file.path());
                   for (const io::TensorInfo& info : files.tensors()) check_tensor(files, info);
                 });
               }) <= 128 * size + (1 << 16));
  return 0;
}
