#include "gatefold/distributed/expect_same.hpp"

#include <doctest/doctest.h>

#include <string>

#include "gatefold/distributed/checkpoint.hpp"
#include "gatefold/distributed/data_parallel.hpp"
#include "gatefold/distributed/expert_parallel.hpp"
#include "gatefold/distributed/loss_of_shards.hpp"
#include "gatefold/gatefold.hpp"
#include "support/temp_directory.hpp"

using namespace gatefold;

namespace {

constexpr Index dim = 4;
auto mixture_of(Index hidden) {
  return Mixture{SoftmaxTopK{.scores = {.experts = 6}}, Mlp<Gelu>{.model_dim = dim, .hidden_dim = hidden}};
}
/// Returns the message of what a program on three shards throws.
std::string message_of(const auto& program) {
  dist::Alone world;
  try {
    dist::run(world, 3, program);
  } catch (const ArgumentError& e) {
    return e.what();
  }
  return "";
}
auto trainer_on(auto& shard, Cpu::Context& ctx, Index hidden, double lr, Seed seed) {
  return Trainer{ctx, dist::ExpertParallel{mixture_of(hidden), &shard}, dist::LossOfShards{MeanSquaredError{}, &shard},
                 dist::DataParallel{optim::Sgd{.lr = lr}, &shard}, seed};
}

}  // namespace

TEST_CASE("expect_same: different models, options or seeds throw at the start") {
  const auto begun = [](Index hidden, double lr, std::uint64_t seed) {
    return message_of([&](auto& shard) {
      Cpu::Context ctx(1);
      const bool odd = shard.index() == 2;
      trainer_on(shard, ctx, odd ? hidden : 3, odd ? lr : 0.1, Seed{odd ? seed : 1});
    });
  };
  CHECK(begun(3, 0.1, 1) == "");
  CHECK(begun(3, 0.1, 2) ==
        "DataParallel: gate.scores.weight: expected the same value on all shards, got a different one on shard 2 than "
        "on shard 0");
  CHECK(begun(3, 0.2, 1) ==
        "DataParallel: lr: expected the same value on all shards, got a different one on shard 2 than on shard 0");
  CHECK(
      begun(5, 0.1, 1) ==
      "DataParallel: expert.up: expected the same value on all shards, got a different one on shard 2 than on shard 0");
}

TEST_CASE("expect_same: different placements throw when a Trainer is made") {
  CHECK(message_of([](auto& shard) {
          Cpu::Context ctx(1);
          dist::Placement placement{{0, 0, 1, 1, 2, 2}};
          if (shard.index() == 1) placement.shard_of[0] = 2;
          Trainer trainer{ctx, dist::ExpertParallel{mixture_of(3), &shard, placement},
                          dist::LossOfShards{MeanSquaredError{}, &shard}, dist::DataParallel{optim::Sgd{}, &shard},
                          Seed{1}};
        }) ==
        "DataParallel: expert.placement: expected the same value on all shards, got a different one on shard 1 than on "
        "shard 0");
}

TEST_CASE("expect_same: saving throws if shared parameters differ") {
  const support::TempDirectory folder;
  CHECK(message_of([&](auto& shard) {
          Cpu::Context ctx(1);
          auto trainer = trainer_on(shard, ctx, 3, 0.1, Seed{1});
          dist::save_checkpoint(shard, folder.file(), trainer);
          if (shard.index() == 1) trainer.params.branch.gate.scores.weight(0, 0) += 1;
          dist::save_checkpoint(shard, folder.path / "other", trainer);
        }) ==
        "save_checkpoint: params.gate.scores.weight: expected the same value on all shards, got a different one on "
        "shard 1 than on shard 0");
  CHECK(folder.entries() == 1);
}

TEST_CASE("expect_same: compares seed and steps, also without shared parameters") {
  const support::TempDirectory folder;
  const Mixture hashed{HashGate{.count = 6}, Mlp<Gelu>{.model_dim = dim, .hidden_dim = 3}};
  const auto said = [&](bool saves, std::uint64_t seed, const auto& change) {
    return message_of([&](auto& shard) {
      Cpu::Context ctx(1);
      const bool odd = shard.index() == 1;
      Trainer trainer{ctx, dist::ExpertParallel{hashed, &shard}, dist::LossOfShards{MeanSquaredError{}, &shard},
                      dist::DataParallel{optim::AdamW{}, &shard}, Seed{odd ? seed : 1}};
      if (odd) change(trainer);
      if (saves)
        dist::save_checkpoint(shard, folder.file(), trainer);
      else
        dist::expect_same(shard, dist::memory_of(ctx), "run", trainer);
    });
  };
  for (const bool saves : {false, true}) {
    const auto sentence = [&](const char* name) {
      return std::string(saves ? "save_checkpoint" : "run") + ": " + name +
             ": expected the same value on all shards, got a different one on shard 1 than on shard 0";
    };
    CHECK(said(saves, 2, [](auto&) {}) == sentence("seed"));
    CHECK(said(saves, 1, [](auto& trainer) { ++trainer.state.step; }) == sentence("optimizer.step"));
    CHECK(said(saves, 1, [](auto& trainer) { ++trainer.skipped; }) == sentence("skipped"));
    CHECK(folder.entries() == 0);
    CHECK(said(saves, 1, [](auto&) {}) == "");
  }
}

TEST_CASE("expect_same: throws after a step with different optimizer options") {
  const auto said = [](const auto& optimizer_of) {
    return message_of([&](auto& shard) {
      Cpu::Context ctx(1);
      Trainer trainer{ctx, dist::ExpertParallel{mixture_of(3), &shard}, dist::LossOfShards{MeanSquaredError{}, &shard},
                      dist::DataParallel{optimizer_of(shard.index() == 1), &shard}, Seed{1}};
      const auto x = uniform_tensor<float>(ctx, Seed{5}, 1, 9, dim);
      trainer.step(x, x);
      dist::expect_same(shard, dist::memory_of(ctx), "run", trainer);
    });
  };
  const auto differs = [&](const auto& optimizer_of) {
    const std::string sentence = said(optimizer_of);
    return sentence.starts_with("run: ") &&
           sentence.ends_with(
               ": expected the same value on all shards, got a different one on shard 1 than on shard 0");
  };
  CHECK(said([](bool) { return optim::AdamW{}; }) == "");
  CHECK(differs([](bool odd) { return optim::AdamW{.beta1 = odd ? 0.5 : 0.9}; }));
  CHECK(differs([](bool odd) { return optim::AdamW{.beta2 = odd ? 0.5 : 0.999}; }));  // the second moments differ
  CHECK(differs([](bool odd) { return optim::Clipped{optim::Sgd{.lr = 0.1}, odd ? 1e-4 : 1e-3}; }));
}

TEST_CASE("expect_same: compares numbers of any type") {
  const auto said = [](auto same, auto other) {
    return message_of(
        [&](auto& shard) { dist::expect_same(shard, "options", "k", shard.index() == 2 ? other : same); });
  };
  const auto check = [&](auto same, auto other) {
    CHECK(said(same, same) == "");
    CHECK(said(same, other) ==
          "options: k: expected the same value on all shards, got a different one on shard 2 than on shard 0");
  };
  check(Index(2), Index(3));
  check(Index(1) << 60, (Index(1) << 60) + 1);  // both round to the same double
  check(0.5, 0.25);
  check(true, false);
  check(0.5L, 0.25L);
}

TEST_CASE("Trainer on shards: DataParallel and dist::save_checkpoint are required") {
  const support::TempDirectory folder;
  CHECK(message_of([](auto& shard) {
          Cpu::Context ctx(1);
          Trainer trainer{ctx, dist::ExpertParallel{mixture_of(3), &shard}, MeanSquaredError{}, optim::Sgd{}, Seed{1}};
        }).find("Trainer: optimizer: expected dist::DataParallel around it") == 0);
  CHECK(
      message_of([&](auto& shard) {
        Cpu::Context ctx(1);
        const auto trainer = trainer_on(shard, ctx, 3, 0.1, Seed{1});
        save_checkpoint(folder.file(), trainer);
      }).find("save_checkpoint: run: expected a run that holds all its experts (on shards use dist::save_checkpoint") ==
      0);
  CHECK(folder.entries() == 0);
}

TEST_CASE("expect_same: throws if shards run different programs") {
  const auto said = [](const auto& first, const auto& others) {
    try {
      dist::Alone world;
      dist::run(world, 3, [&](auto& shard) { shard.index() == 0 ? first(shard) : others(shard); });
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  const auto compare = [](const char* where) {
    return [where](auto& shard) { dist::expect_same(shard, where, "x", 1.0); };
  };
  CHECK(said(compare("move_experts"), compare("move_experts")) == "");
  const std::string other = said(compare("move_experts"), compare("save_checkpoint"));
  CHECK((other == "move_experts: call: expected the same call on all shards, got a different one on shard 1 than on "
                  "shard 0: the shards do not run the same program" ||
         other == "save_checkpoint: call: expected the same call on all shards, got a different one on shard 1 than on "
                  "shard 0: the shards do not run the same program"));
  for (const Index n : {1, 3, 8}) {  // the counts of values that steps exchange
    const std::string stepping = said(compare("move_experts"), [n](auto& shard) {
      std::vector<double> values(static_cast<std::size_t>(n));
      shard.sum(values.data(), n);
      shard.template sum<Index>(1);
    });
    CHECK(stepping.find("the shards do not run the same program") != std::string::npos);
    CHECK(stepping.find("a different one on shard") == std::string::npos);
  }
}
