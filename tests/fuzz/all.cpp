// All fuzz targets as one program, so that code that two targets share is compiled once. The program runs the target
// that has the same name as the executable file.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <string_view>

#include "fuzz/blocks.cpp"
#include "fuzz/checkpoint.cpp"
#include "fuzz/config.cpp"
#include "fuzz/frozen.cpp"
#include "fuzz/idx.cpp"
#include "fuzz/index.cpp"
#include "fuzz/safetensors.cpp"
#include "fuzz/text.cpp"

namespace {

struct Target {
  std::string_view name;
  int (*run)(const std::uint8_t*, std::size_t);
};
constexpr Target targets[] = {{"blocks", fuzz::blocks},           {"checkpoint", fuzz::checkpoint},
                              {"config", fuzz::config},           {"idx", fuzz::idx},
                              {"frozen", fuzz::frozen},           {"index", fuzz::index},
                              {"safetensors", fuzz::safetensors}, {"text", fuzz::text}};
const Target* target = nullptr;

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char*** arguments) {
  const std::string name = std::filesystem::path((*arguments)[0]).filename();
  target = std::find_if(std::begin(targets), std::end(targets), [&](const Target& t) { return t.name == name; });
  if (target != std::end(targets)) return 0;
  std::fprintf(stderr, "%s: no target of this name\n", name.c_str());
  std::exit(2);
}
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) { return target->run(bytes, size); }
