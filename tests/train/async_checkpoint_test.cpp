#include "gatefold/train/checkpoint.hpp"

#include <doctest/doctest.h>

#include <filesystem>
#include <stdexcept>
#include <string>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/expert/linear.hpp"
#include "gatefold/gate/gates.hpp"
#include "gatefold/layer/mixture.hpp"
#include "gatefold/layer/residual.hpp"
#include "gatefold/layer/stack.hpp"
#include "gatefold/loss/mean_squared_error.hpp"
#include "gatefold/optim/adamw.hpp"
#include "gatefold/train/trainer.hpp"
#include "gatefold/update/momentum.hpp"
#include "support/temp_directory.hpp"
#include "support/text_file.hpp"

using namespace gatefold;
using support::read_bytes;
using support::refusal;
using support::TempDirectory;

namespace {

constexpr Index items = 12, dim = 4;

auto trainer_of(Cpu::Context& ctx) {
  return Trainer{
      ctx,
      Stack{Residual{update::HeavyBall{.mu = 0.5},
                     Mixture{SoftmaxTopK{.scores = {.experts = 3}, .selection = {.k = 2}}, Linear{.model_dim = dim}}},
            2},
      MeanSquaredError{}, optim::AdamW{.lr = 0.01}, Seed{5}};
}
void step(auto& run) {
  const auto t = static_cast<std::uint64_t>(run.state.step);
  const auto x = uniform_tensor<float>(run.context(), Seed{7}.fork(t), 1.0, items, dim);
  run.step(x, x);
}

}  // namespace

TEST_CASE("AsyncCheckpoint: writes the same bytes as save_checkpoint") {
  const TempDirectory temp;
  Cpu::Context ctx(1);
  auto run = trainer_of(ctx), same = trainer_of(ctx);
  AsyncCheckpoint checkpoint;
  CHECK_FALSE(checkpoint.writing());
  checkpoint.wait();
  for (int i = 0; i < 20; ++i) {
    const std::string name = std::to_string(i);
    const io::SaveOptions options{.max_file_bytes = i % 2 == 0 ? 0 : 200};
    checkpoint.save(temp.path / ("async" + name), run, {{"i", name}}, options);
    step(run);
    step(run);
  }
  checkpoint.wait();
  CHECK_FALSE(checkpoint.writing());
  for (int i = 0; i < 20; i += 2) {
    const std::string name = std::to_string(i);
    save_checkpoint(temp.path / "sync", same, {{"i", name}});
    CHECK(read_bytes(temp.path / ("async" + name)) == read_bytes(temp.path / "sync"));
    for (int j = 0; j < 4; ++j) step(same);
  }
  CHECK(load_checkpoint(temp.path / "async19", same) == io::Metadata{{"i", "19"}});
  CHECK(same.state.step == 38);
  CHECK(run.state.step == 40);
}

TEST_CASE("AsyncCheckpoint: save and the destructor finish the previous file") {
  const TempDirectory temp;
  Cpu::Context ctx(1);
  auto run = trainer_of(ctx);
  {
    AsyncCheckpoint checkpoint;
    checkpoint.save(temp.path / "first", run);
    checkpoint.save(temp.path / "second", run);
    CHECK(io::exists(temp.path / "first"));
  }
  CHECK(read_bytes(temp.path / "second") == read_bytes(temp.path / "first"));
  CHECK(read_bytes(temp.path / "first").size() > 1000);
  CHECK(temp.entries() == 2);
}

TEST_CASE("AsyncCheckpoint: the next call or the destructor throws write errors") {
  const TempDirectory temp;
  Cpu::Context ctx(1);
  auto run = trainer_of(ctx);
  // A folder of the same name makes the last step, the rename, fail.
  const std::string sentence = temp.file().string() + ": cannot replace: Is a directory";
  // The thread of AsyncCheckpoint may write the file before create_directory runs. Then the folder cannot be made, and
  // the loop tries again.
  const auto until = [&](const auto& call) {
    std::string said;
    for (int i = 0; i < 1000 && said != sentence; ++i) {
      said = refusal([&] {
        AsyncCheckpoint checkpoint;
        std::error_code ignored;
        std::filesystem::remove(temp.path / "next", ignored);
        checkpoint.save(temp.file(), run);
        std::filesystem::create_directory(temp.file(), ignored);
        call(checkpoint);
      });
      std::filesystem::remove(temp.file());
    }
    return said;
  };
  CHECK(until([](AsyncCheckpoint& checkpoint) { checkpoint.wait(); }) == sentence);
  CHECK(until([&](AsyncCheckpoint& checkpoint) { checkpoint.save(temp.path / "next", run); }) == sentence);
  CHECK(until([](AsyncCheckpoint&) {}) == sentence);
  CHECK_FALSE(io::exists(temp.path / "next"));
  CHECK(temp.entries() == 0);

  AsyncCheckpoint checkpoint;
  CHECK(refusal([&] { checkpoint.save(temp.path / "none" / "file", run); }).find("cannot create") != std::string::npos);
  checkpoint.save(temp.file(), run);
  checkpoint.wait();
  CHECK(temp.entries() == 1);
  CHECK_THROWS_AS(checkpoint.save(temp.file(), run, {{"gatefold.step", "3"}}), ArgumentError);
}

TEST_CASE("AsyncCheckpoint: the destructor does not replace an active exception") {
  const TempDirectory temp;
  Cpu::Context ctx(1);
  auto run = trainer_of(ctx);
  CHECK_THROWS_WITH_AS(
      [&] {
        AsyncCheckpoint checkpoint;
        checkpoint.save(temp.file(), run);
        throw std::runtime_error("another");
      }(),
      "another", std::runtime_error);
  CHECK(temp.entries() == 1);  // the file was still written
}
