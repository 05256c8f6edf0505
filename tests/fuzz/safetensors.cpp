// Reads any bytes as a safetensors file, as metadata and into a small pack. read_metadata accepts each file that load
// accepts, and saving the tensors again gives the same bits. A file that is accepted would be refused if it were one
// byte longer or shorter. The reader holds at most 16 times the size of the file plus 32 KiB.
#include <algorithm>
#include <cstdint>
#include <string>

#include "fuzz/fuzz.hpp"
#include "fuzz/host.hpp"
#include "gatefold/io/safetensors.hpp"

using namespace gatefold;
using fuzz::Host;

namespace {

struct Pack {
  Tensor<float, 2, Host> a{2, 1};
  Tensor<Index, 1, Host> b{1};
  Tensor<double, 2, Host> c{3, 0};

  GATEFOLD_PACK(a, b, c)
};

std::string bits(const Pack& pack) {
  std::string all(reinterpret_cast<const char*>(pack.a.data()), 8);
  return all.append(reinterpret_cast<const char*>(pack.b.data()), 8);
}

}  // namespace

int fuzz::safetensors(const std::uint8_t* bytes, std::size_t size) {
  const fuzz::File file(bytes, size);
  Host::Context ctx;
  Pack pack;
  std::fill_n(pack.a.data(), 2, 1.0f);
  pack.b(0) = 1;
  const std::string before = bits(pack);
  io::Metadata from_header, from_load;
  bool is_safetensors = false, loads = false;
  const std::size_t held = fuzz::peak([&] {
    try {
      from_header = io::read_metadata(file.path());
      is_safetensors = true;
    } catch (const FileError&) {
    }
  });
  FUZZ_REQUIRE(held <= 16 * size + (1 << 15));
  if (is_safetensors) {  // then a file of a different length is not
    const std::string longer = std::string(bytes, bytes + size) + '\0';
    for (const std::size_t other : {size - 1, size + 1}) {
      const fuzz::File changed(reinterpret_cast<const std::uint8_t*>(longer.data()), other);
      bool refused = false;
      try {
        io::read_metadata(changed.path());
      } catch (const FileError&) {
        refused = true;
      }
      FUZZ_REQUIRE(refused);
    }
  }
  const std::size_t held_to_load = fuzz::peak([&] {
    try {
      from_load = io::load(file.path(), ctx, io::Part{"", pack});
      loads = true;
    } catch (const FileError&) {
    }
  });
  FUZZ_REQUIRE(held_to_load <= 16 * size + (1 << 15));
  if (!loads) {
    FUZZ_REQUIRE(bits(pack) == before);
    return 0;
  }
  FUZZ_REQUIRE(is_safetensors && from_header == from_load);
  const std::filesystem::path again = fuzz::scratch_file();
  io::save(again, ctx, from_load, io::Part{"", pack});
  Pack second;
  FUZZ_REQUIRE(io::load(again, ctx, io::Part{"", second}) == from_load);
  FUZZ_REQUIRE(bits(second) == bits(pack));
  return 0;
}
