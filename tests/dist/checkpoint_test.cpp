#include "gatefold/dist/checkpoint.hpp"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "gatefold/dist/data_parallel.hpp"
#include "gatefold/dist/expert_parallel.hpp"
#include "gatefold/dist/loss_of_shards.hpp"
#include "gatefold/gatefold.hpp"
#include "support/temp_directory.hpp"

using namespace gatefold;

namespace {

constexpr Index dim = 5, items = 20;

// Experts of two kinds, a gate that adapts without learning, an optimizer with moments.
const Mixture mixture{
    SigmoidTopK{.scores = {.experts = 6}, .selection = {.k = 2}},
    Experts<Mlp<Gelu>, Linear>{.kinds = {Mlp<Gelu>{.model_dim = dim, .hidden_dim = 3}, Linear{.model_dim = dim}},
                               .counts = {4, 2}}};
auto model_of(const auto& branch) { return Stack{Residual{update::HeavyBall{}, branch}, 2}; }

/// A run on shards: from a file, if there is one, some steps, to a file.
void run_on(Index shards, const std::filesystem::path& from, int steps, const std::filesystem::path& to,
            const dist::Placement& placement = {}) {
  dist::Alone world;
  dist::run(world, shards, [&](auto& shard) {
    Cpu::Context ctx(1);
    Trainer trainer{ctx, model_of(dist::ExpertParallel{mixture, &shard, placement}),
                    dist::LossOfShards{MeanSquaredError{}, &shard},
                    dist::DataParallel{optim::Clipped{optim::AdamW{.lr = 0.01}, 0.05}, &shard}, Seed{3}};
    if (!from.empty()) {
      const io::Metadata kept = dist::load_checkpoint(shard, from, trainer);
      CHECK(kept.at("note") == "kept");
    }
    const auto mine = shard.part_of(items);
    for (int i = 0; i < steps; ++i) {
      const auto seed = static_cast<std::uint64_t>(trainer.state.step);
      const auto x = uniform_tensor<float>(ctx, Seed{10 + seed}, 1, items, dim);
      const auto y = uniform_tensor<float>(ctx, Seed{90 + seed}, 1, items, dim);
      trainer.step(x.view().rows(mine.first, mine.count), y.view().rows(mine.first, mine.count));
    }
    dist::save_checkpoint(shard, to, trainer, {{"note", "kept"}});
  });
}

struct Plain {
  Cpu::Context ctx{1};
  decltype(Trainer{ctx, model_of(mixture), MeanSquaredError{}, optim::AdamW{}, Seed{3}}) trainer{
      ctx, model_of(mixture), MeanSquaredError{}, optim::AdamW{.lr = 0.01}, Seed{3}};
};

}  // namespace

TEST_CASE("a run that begins has the file of one process, on any number of shards") {
  const support::TempDirectory folder;
  Plain plain;
  save_checkpoint(folder.path / "plain", plain.trainer, {{"note", "kept"}});
  const std::string expected = support::read_bytes(folder.path / "plain");
  for (Index shards : {1, 2, 4, 7}) {  // of seven, one has no expert
    CAPTURE(shards);
    run_on(shards, {}, 0, folder.file());
    CHECK(support::read_bytes(folder.file()) == expected);
  }
}

TEST_CASE("a file is read by any number of shards, and by one process") {
  const support::TempDirectory folder;
  run_on(3, {}, 4, folder.path / "trained");
  const std::string trained = support::read_bytes(folder.path / "trained");
  for (Index shards : {1, 2, 3, 5}) {
    CAPTURE(shards);
    run_on(shards, folder.path / "trained", 0, folder.file());
    CHECK(support::read_bytes(folder.file()) == trained);
  }
  Plain plain;
  CHECK(load_checkpoint(folder.path / "trained", plain.trainer).at("note") == "kept");
  CHECK(plain.trainer.state.step == 4);
  save_checkpoint(folder.file(), plain.trainer, {{"note", "kept"}});
  CHECK(support::read_bytes(folder.file()) == trained);
}

TEST_CASE("a run that was interrupted has the bits of one that was not") {
  const support::TempDirectory folder;
  run_on(3, {}, 5, folder.path / "whole");
  run_on(3, {}, 2, folder.path / "begun");
  run_on(3, folder.path / "begun", 3, folder.path / "ended");
  CHECK(support::read_bytes(folder.path / "ended") == support::read_bytes(folder.path / "whole"));
}

TEST_CASE("where experts lie reaches no bit of a run, and the file is that of any placement") {
  const support::TempDirectory folder;
  run_on(3, {}, 4, folder.path / "even");
  const std::string expected = support::read_bytes(folder.path / "even");
  for (const dist::Placement& placement : {dist::Placement{{2, 0, 1, 0, 1, 2}}, dist::Placement{{1, 1, 1, 1, 1, 1}},
                                           dist::Placement{{0, 0, 2, 2, 2, 0}}}) {
    CAPTURE(placement.shard_of);
    run_on(3, {}, 4, folder.path / "placed", placement);
    CHECK(support::read_bytes(folder.path / "placed") == expected);
    run_on(3, folder.path / "even", 0, folder.file(), placement);
    CHECK(support::read_bytes(folder.file()) == expected);
  }
}

TEST_CASE("a file that cannot be read or written is an error on all shards, and no file is left") {
  const support::TempDirectory folder;
  CHECK_THROWS_AS(run_on(3, folder.path / "none", 0, folder.file()), FileError);
  folder.write("no checkpoint");
  CHECK_THROWS_AS(run_on(3, folder.file(), 0, folder.path / "other"), FileError);
  CHECK_THROWS_AS(run_on(3, {}, 0, folder.path / "no folder" / "file"), FileError);
  CHECK(folder.entries() == 1);
}
