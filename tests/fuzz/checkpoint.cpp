// Uses any bytes as the metadata of a checkpoint (JSON). The counters of a run are read or refused. If they are
// refused, nothing is written to the run. If they are read, saving and reading them again gives the same values.
#include <cstdint>
#include <string>

#include "fuzz/fuzz.hpp"
#include "fuzz/host.hpp"
#include "gatefold/train/checkpoint.hpp"

using namespace gatefold;
using fuzz::Host;

namespace {

struct State {
  Index step = 0;
  Tensor<float, 1, Host> m{1};

  GATEFOLD_PACK(m)
};
/// A run with counters, like a Trainer: some of its own and some of a state inside it.
struct Run {
  Host::Context ctx{};
  State state{};
  std::uint64_t seed = 5;
  Index skipped = 0;

  Host::Context& context() const { return const_cast<Host::Context&>(ctx); }
  GATEFOLD_PACK(state)
  static void counters(auto&& f, auto&... p) {
    f("seed", p.seed...);
    f("skipped", p.skipped...);
  }
};

}  // namespace

int fuzz::checkpoint(const std::uint8_t* bytes, std::size_t size) {
  std::string json(bytes, bytes + size);
  // A file with the tensor of a run. The fuzz input is its metadata.
  json = R"({"__metadata__":)" + json + R"(,"state.m":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
  const std::uint64_t length = json.size();
  json = std::string(reinterpret_cast<const char*>(&length), 8) + json + std::string(4, '\1');
  const fuzz::File file(reinterpret_cast<const std::uint8_t*>(json.data()), json.size());
  Run run;
  run.state.m(0) = 1;
  io::Metadata own;
  bool loaded = false;
  FUZZ_REQUIRE(fuzz::peak([&] {
                 try {
                   own = load_checkpoint(file.path(), run);
                   loaded = true;
                 } catch (const FileError&) {
                 }
               }) <= 32 * json.size() + (1 << 16));
  if (!loaded) {
    FUZZ_REQUIRE(run.state.step == 0 && run.seed == 5 && run.skipped == 0 && run.state.m(0) == 1);
    return 0;
  }
  FUZZ_REQUIRE(run.state.step >= 0 && run.skipped >= 0);
  const std::filesystem::path again = fuzz::scratch_file();
  save_checkpoint(again, run, own);
  Run second;
  FUZZ_REQUIRE(load_checkpoint(again, second) == own);
  FUZZ_REQUIRE(second.state.step == run.state.step && second.seed == run.seed && second.skipped == run.skipped);
  FUZZ_REQUIRE(second.state.m(0) == run.state.m(0));
  return 0;
}
