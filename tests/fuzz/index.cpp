// Uses any bytes as the index of a safetensors file in several parts, which are in the same folder. If the index is
// accepted, the tensors are those of the parts that it names, and the metadata is that of the index. If it is refused,
// nothing has changed. The reader holds at most 64 times the size of the index plus 64 KiB.
#include <algorithm>
#include <cstdint>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "fuzz/fuzz.hpp"
#include "fuzz/host.hpp"
#include "gatefold/io/safetensors.hpp"

using namespace gatefold;
using fuzz::Host;

namespace {

/// A pack of two tensors with one number each.
struct Two {
  Tensor<float, 1, Host> a{1}, b{1};

  GATEFOLD_PACK(a, b)
};
/// The tensors of each part. All numbers differ.
const std::map<std::string, std::map<std::string, float>> parts{{"one", {{"a", 1.0f}}},
                                                                {"other", {{"a", 2.0f}, {"b", 3.0f}}}};

/// Returns the folder of the parts.
std::filesystem::path folder() {
  static const std::filesystem::path made = [] {
    const auto path = fuzz::scratch_file().replace_filename("parts");
    std::filesystem::create_directories(path);
    for (const auto& [name, tensors] : parts) {
      Host::Context ctx;
      Two pack;
      for (const auto& [tensor, number] : tensors) (tensor == "a" ? pack.a : pack.b)(0) = number;
      if (tensors.count("b") == 0) pack.b.resize(0);
      io::save(path / name, ctx, {}, io::Part{"", pack});
    }
    return path;
  }();
  return made;
}

}  // namespace

int fuzz::index(const std::uint8_t* bytes, std::size_t size) {
  const std::string text(bytes, bytes + size);
  const std::filesystem::path path = folder() / "model.safetensors.index.json";
  std::ofstream(path, std::ios::binary) << text;
  Host::Context ctx;
  Two pack;
  pack.a(0) = pack.b(0) = -1;
  io::Metadata metadata;
  bool loads = false;
  FUZZ_REQUIRE(fuzz::peak([&] {
                 try {
                   metadata = io::load(path, ctx, io::Part{"", pack});
                   loads = true;
                 } catch (const FileError&) {
                 }
               }) <= 64 * size + (1 << 16));
  if (!loads) {
    FUZZ_REQUIRE(pack.a(0) == -1 && pack.b(0) == -1);
    return 0;
  }
  const auto read = nlohmann::json::parse(text);
  const auto& map = read.at("weight_map");
  const auto of_part = [&](const char* name) { return parts.at(map.at(name).get<std::string>()).at(name); };
  FUZZ_REQUIRE(map.size() == 2 && pack.a(0) == of_part("a") && pack.b(0) == of_part("b"));
  for (const auto& [key, value] : metadata) FUZZ_REQUIRE(read.at("__metadata__").at(key) == value);
  return 0;
}
