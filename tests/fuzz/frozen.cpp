// Reads any bytes as a file of save_frozen. If the file is refused, the reason is a FileError. If it is read, the
// parameters are saved in both forms, mappable or not. The saved file gives the same results. Saving again gives the
// same bytes if the form is that of the input. The reader holds at most 32 times the size of the file plus 64 KiB.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "fuzz/fuzz.hpp"
#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/expert/linear.hpp"
#include "gatefold/layer/no_residual.hpp"
#include "gatefold/train/frozen_file.hpp"
#include "support/temp_directory.hpp"

using namespace gatefold;

namespace {

// More than one group of rows, and an odd number of rows and columns.
const OneExpert frozen_layer{Linear{.model_dim = 35, .output_dim = 3}};

std::vector<float> outputs_of(Cpu::Context& ctx, const auto& frozen) {
  std::vector<float> x(2 * 35, 0.5F);
  Tensor<float, 2, Cpu> y(2, 3);
  infer(frozen_layer, ctx, frozen, View<const float, 2, Cpu>(x.data(), 2, 35), y);
  return {y.data(), y.data() + y.size()};
}

}  // namespace

int fuzz::frozen(const std::uint8_t* bytes, std::size_t size) {
  static Cpu::Context ctx(1);
  const fuzz::File file(bytes, size);
  std::optional<decltype(io::load_frozen(file.path(), ctx, frozen_layer))> frozen;
  FUZZ_REQUIRE(fuzz::peak([&] {
                 try {
                   frozen.emplace(io::load_frozen(file.path(), ctx, frozen_layer));
                 } catch (const FileError&) {
                 }
               }) <= 32 * size + (1 << 16));
  if (!frozen) return 0;
  const std::set<std::string> names = io::read_names(file.path());
  const std::vector<float> expected = outputs_of(ctx, *frozen);
  const std::filesystem::path path = fuzz::scratch_file();
  const bool mapped = std::any_of(names.begin(), names.end(), [](const auto& n) { return n.ends_with(".panels"); });
  const auto check = [&](bool mappable) {
    io::save_frozen(path, ctx, *frozen, {}, {.mappable = mappable});
    const std::string saved = support::read_bytes(path);
    const auto again = io::load_frozen(path, ctx, frozen_layer);
    io::save_frozen(path, ctx, again, {}, {.mappable = mappable});
    FUZZ_REQUIRE(mapped != mappable || support::read_bytes(path) == saved);
    const std::vector<float> outputs = outputs_of(ctx, again);
    FUZZ_REQUIRE(std::equal(outputs.begin(), outputs.end(), expected.begin(),
                            [](float x, float y) { return x == y || (x != x && y != y); }));
  };
  check(true);
  try {
    check(false);
  } catch (const FileError&) {
    FUZZ_REQUIRE(mapped);  // numbers and scales of mapped files are not checked before
  }
  return 0;
}
