#include "gatefold/distributed/move_experts.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <string>
#include <type_traits>
#include <vector>

#include "gatefold/distributed/checkpoint.hpp"
#include "gatefold/distributed/data_parallel.hpp"
#include "gatefold/distributed/expert_parallel.hpp"
#include "gatefold/distributed/loss_of_shards.hpp"
#include "gatefold/distributed/zero_optimizer.hpp"
#include "gatefold/gatefold.hpp"
#include "support/temp_directory.hpp"

using namespace gatefold;
using dist::Placement;
using Numbers = std::vector<Index>;

namespace {

constexpr Index dim = 5, experts = 6, items = 40, layers = 2, steps = 6;

// Experts of two kinds, and a gate that adapts without gradients.
auto model_of(auto& shard) {
  const Mixture mixture{
      SigmoidTopK{.scores = {.experts = experts}, .selection = {.k = 2}},
      Experts<Mlp<Gelu>, Linear>{.kinds = {Mlp<Gelu>{.model_dim = dim, .hidden_dim = 3}, Linear{.model_dim = dim}},
                                 .counts = {4, 2}}};
  return Stack{Residual{update::HeavyBall{}, PreNorm{LayerNorm{}, dist::ExpertParallel{mixture, &shard}}}, layers};
}
auto trainer_on(auto& shard, Cpu::Context& ctx, const auto& optimizer) {
  return Trainer{ctx, model_of(shard), dist::LossOfShards{MeanSquaredError{}, &shard},
                 dist::DataParallel{optimizer, &shard}, Seed{3}};
}
/// Runs a training step on similar items, so that most of them go to the same experts.
double step(auto& shard, auto& trainer) {
  auto& ctx = trainer.context();
  const auto number = static_cast<std::uint64_t>(trainer.state.step);
  auto x = uniform_tensor<float>(ctx, Seed{10 + number}, 0.3, items, dim);
  for (Index n = 0; n < items; ++n)
    for (Index d = 0; d < dim; ++d) x(n, d) += d % 2 == 0 ? 1.f : -0.5f;
  const auto y = uniform_tensor<float>(ctx, Seed{90 + number}, 1, items, dim);
  const auto mine = shard.part_of(items);
  return trainer.step(x.view().rows(mine.first, mine.count), y.view().rows(mine.first, mine.count));
}

/// Returns the placement of each layer's experts at a step. In turn, the placements are irregular, have all experts of
/// a layer on one shard, or are even.
std::vector<Placement> places(Index shards, Index step) {
  std::vector<Placement> all(layers);
  for (Index i = 0; i < layers; ++i)
    for (Index e = 0; step % 3 != 2 && e < experts; ++e)
      all[static_cast<std::size_t>(i)].shard_of.push_back((step % 3 == 0 ? e * e + i * e + step : step + i) % shards);
  return all;
}
enum class Moves { none, often, once };

/// The losses of a run, and the bytes of its last checkpoint.
struct Run {
  std::vector<double> losses;
  std::string file;
  bool operator==(const Run&) const = default;
};
template <class F>
Run run_of(Index shards, int threads, Moves moves, const F& optimizer_of) {
  const support::TempDirectory folder;
  Run result;
  for (Index part = 0; part < 2; ++part) {  // the second half continues from a file
    dist::Alone world;
    dist::run(world, shards, [&](auto& shard) {
      Cpu::Context ctx(threads);
      auto trainer = trainer_on(shard, ctx, optimizer_of(shard));
      if (part == 1) dist::load_checkpoint(shard, folder.file(), trainer);
      while (trainer.state.step < steps / 2 * (part + 1)) {
        const double loss = step(shard, trainer);
        if (shard.index() == 0) result.losses.push_back(loss);
        if (moves == Moves::often || (moves == Moves::once && trainer.state.step == 2))
          dist::move_experts(shard, trainer, places(shards, trainer.state.step));
      }
      dist::save_checkpoint(shard, folder.file(), trainer);
    });
  }
  result.file = support::read_bytes(folder.file());
  return result;
}

/// Returns the message of what a program on two shards throws.
std::string message_of(const auto& program) {
  dist::Alone world;
  try {
    dist::run(world, 2, program);
  } catch (const ArgumentError& e) {
    return e.what();
  }
  return "";
}

}  // namespace

TEST_CASE("move_experts: losses, parameters and checkpoints do not change") {
  const auto check = [](const auto& optimizer_of) {
    for (Index shards : {1, 2, 3, 4}) {
      CAPTURE(shards);
      const Run expected = run_of(shards, 1, Moves::none, optimizer_of);
      CHECK(expected.file.size() > 1000);
      CHECK(expected.losses.size() == steps);
      CHECK((run_of(shards, 1, Moves::often, optimizer_of) == expected));
      CHECK((run_of(shards, 2, Moves::once, optimizer_of) == expected));
    }
  };
  check([](auto&) { return optim::Clipped{optim::AdamW{.lr = 0.02, .decay = 0.1}, 0.1}; });
  // The state is divided by rows (Zero) and by groups (InGroups); some of its tensors are empty.
  check([](auto& shard) {
    return optim::Clipped{
        dist::Zero{InGroups{is_weight, optim::AdamW{.lr = 0.02, .decay = 0.1}, optim::Sgd{.lr = 0.1, .momentum = 0.9}},
                   &shard},
        0.1};
  });
}

TEST_CASE("move_experts: moves parameters and optimizer state, zeros gradients") {
  dist::Alone world;
  std::mutex mutex;
  dist::run(world, 3, [&](auto& shard) {
    Cpu::Context ctx(1);
    auto trainer = trainer_on(shard, ctx, optim::AdamW{.lr = 0.02});
    step(shard, trainer);
    const std::vector<Placement> to{{{1, 1, 1, 1, 1, 1}}, {{0, 2, 0, 2, 0, 2}}};
    const Index moved = dist::move_experts(shard, trainer, to);
    const auto& first = trainer.params.layers[0].branch.branch.expert.part;
    const auto& second = trainer.state.m.layers[1].branch.branch.expert.part;
    const auto& grads = trainer.grads.layers[1].branch.branch.expert.part;
    const bool one = shard.index() == 1;
    const std::lock_guard lock(mutex);
    CHECK(moved == 4 + 4);  // from {0, 0, 1, 1, 2, 2}
    CHECK(dist::placements(trainer) == to);
    CHECK(std::get<0>(first.kinds).up.extent(0) == (one ? 4 : 0));
    CHECK(std::get<1>(first.kinds).weight.extent(0) == (one ? 2 : 0));
    CHECK(std::get<0>(first.kinds).up.extent(1) == dim);
    CHECK(std::get<0>(second.kinds).up.extent(0) == (one ? 0 : 2));
    CHECK(std::get<1>(grads.kinds).weight.extent(0) == (one ? 0 : 1));
    for_each_tensor([](const Name&, const auto& t) { CHECK(std::count(t.data(), t.data() + t.size(), 0) == t.size()); },
                    grads);
    CHECK(trainer.params.layers[0].branch.branch.expert.deal == trainer.state.v.layers[0].branch.branch.expert.deal);
  });
}

TEST_CASE("move_experts: invalid placements throw on all shards, move no experts") {
  const auto refused = [](const auto& ask) {
    return message_of([&](auto& shard) {
      Cpu::Context ctx(1);
      auto trainer = trainer_on(shard, ctx, optim::AdamW{.lr = 0.02});
      ask(shard, trainer);
    });
  };
  const Placement other{{1, 1, 1, 0, 0, 0}};
  CHECK(refused([&](auto& shard, auto& trainer) { dist::move_experts(shard, trainer, {other, other}); }) == "");
  CHECK(refused([&](auto& shard, auto& trainer) { dist::move_experts(shard, trainer, {other}); }) ==
        "move_experts: placements: expected one for each of 2 ExpertParallel, got 1");
  CHECK(refused([&](auto& shard, auto& trainer) {
          dist::move_experts(shard, trainer, {other, {{0, 1}}});
        }) == "move_experts: placement: expected a shard for each of 6 experts, got 2");
  CHECK(refused([&](auto& shard, auto& trainer) {
          dist::move_experts(shard, trainer, {other, {{0, 1, 0, 1, 2, 0}}});
        }) == "move_experts: placement[4]: expected a shard in [0, 2), got 2");
  CHECK(refused([&](auto& shard, auto& trainer) {
          dist::move_experts(shard, trainer, {other, shard.index() == 1 ? other : Placement{}});
        }) ==
        "move_experts: placements.1: expected the same value on all shards, got a different one on shard 1 than on "
        "shard 0");
  CHECK(refused([&](auto& shard, auto& trainer) {
          const Tensor<float, 2, Cpu> x = constant_tensor<float>(trainer.context(), 1, 2, dim);
          trainer.accumulate(x, x);
          dist::move_experts(shard, trainer, {other, other});
        }) == "move_experts: run: expected 0 accumulated parts of a batch (call step first), got 1");
  CHECK(refused([&](auto& shard, auto& trainer) {
          if (shard.index() == 1)
            std::get<1>(trainer.state.m.layers[1].branch.branch.expert.part.kinds).bias.resize(3, dim);
          dist::move_experts(shard, trainer, {other, other});
        }) ==
        "move_experts: optimizer.m.layers.1.branch.branch.expert.kinds.1.bias: expected 2 experts on shard 1, got 3");

  // A run whose move was refused can continue.
  dist::Alone world;
  std::vector<double> losses[2];
  for (int i = 0; i < 2; ++i)
    dist::run(world, 2, [&](auto& shard) {
      Cpu::Context ctx(1);
      auto trainer = trainer_on(shard, ctx, optim::AdamW{.lr = 0.02});
      for (int s = 0; s < 3; ++s) {
        const double loss = step(shard, trainer);
        if (shard.index() == 0) losses[i].push_back(loss);
        if (i == 1) CHECK_THROWS_AS(dist::move_experts(shard, trainer, {other, {{0, 1}}}), ArgumentError);
      }
    });
  CHECK(losses[0] == losses[1]);
}

TEST_CASE("move_experts: a failure midway moves no experts") {
  std::atomic<int> whole = 0;
  dist::Alone world;
  CHECK_THROWS_WITH_AS(
      dist::run(world, 2,
                [&](auto& shard) {
                  Cpu::Context ctx(1);
                  auto trainer = trainer_on(shard, ctx, optim::AdamW{.lr = 0.02});
                  const auto bytes = [&] {
                    std::vector<float> all;
                    const auto add = [&](const Name&, const auto& t) {
                      all.insert(all.end(), t.data(), t.data() + t.size());
                    };
                    for_each_tensor(add, trainer.params);
                    return all;
                  };
                  step(shard, trainer);
                  const auto placed = dist::placements(trainer);
                  const auto before = bytes();
                  // Optimizer moments are sent after the parameters. On shard 1, the rows of one moment get another
                  // width, so the move fails after the parameters have been sent.
                  if (shard.index() == 1)
                    std::get<1>(trainer.state.v.layers[1].branch.branch.expert.part.kinds).weight.resize(2, dim, 1);
                  try {
                    dist::move_experts(shard, trainer, {{{1, 1, 1, 0, 0, 0}}, {{1, 0, 1, 0, 1, 0}}});
                  } catch (const Error&) {
                    whole += dist::placements(trainer) == placed && bytes() == before;
                    throw;
                  }
                }),
      "dist: shard 1 sends shard 0 20 bytes, but that shard expects 100: the shards do not run the same program",
      DeviceError);
  CHECK(whole == 2);
}

TEST_CASE("move_experts: backward throws if forward ran before the move") {
  CHECK(message_of([&](auto& shard) {
          Cpu::Context ctx(1);
          auto trainer = trainer_on(shard, ctx, optim::AdamW{.lr = 0.02});
          const auto& branch = trainer.layer().layer.branch.branch;
          const auto x = uniform_tensor<float>(ctx, Seed{1}, 1, items, dim);
          Tensor<float, 2, Cpu> u(items, dim), dx = constant_tensor<float>(ctx, 0, items, dim);
          Saved<std::remove_cvref_t<decltype(branch)>, float, Cpu> saved;
          branch.forward(ctx, trainer.params.layers[0].branch.branch, x, u, saved);
          dist::move_experts(shard, trainer, {{{1, 1, 1, 0, 0, 0}}, {}});
          backward(branch, ctx, trainer.params.layers[0].branch.branch, x, saved, x, dx,
                   trainer.grads.layers[0].branch.branch);
        }) ==
        "ExpertParallel.backward: saved: expected the Saved that forward wrote for these parameters, got one of other "
        "parameters, or from before experts moved");
}

TEST_CASE("move_experts: later use of packs outside the trainer throws") {
  dist::Alone world;
  std::mutex mutex;
  dist::run(world, 2, [&](auto& shard) {
    Cpu::Context ctx(1);
    auto trainer = trainer_on(shard, ctx, optim::Sgd{.lr = 0.1});
    auto best = zeros_like(ctx, trainer.params);
    step(shard, trainer);
    copy_pack(ctx, trainer.params, best);                                         // the experts have not moved yet
    const std::vector<Placement> swapped(layers, Placement{{1, 1, 0, 0, 0, 1}});  // each shard has as many as before
    dist::move_experts(shard, trainer, swapped);
    const std::string message =
        "Sharded: packs: expected packs with their experts on the same shards, got a pack with experts on other shards "
        "(move_experts moves only the experts of the run)";
    const std::lock_guard lock(mutex);
    CHECK_THROWS_WITH_AS(copy_pack(ctx, trainer.params, best), message.c_str(), ArgumentError);
    CHECK_THROWS_WITH_AS(copy_pack(ctx, best, trainer.params), message.c_str(), ArgumentError);
    CHECK_THROWS_WITH_AS(for_each_tensor([](const Name&, auto&, auto&) {}, trainer.params, best), message.c_str(),
                         ArgumentError);
    auto now = zeros_like(ctx, trainer.params);
    copy_pack(ctx, trainer.params, now);
  });
}

TEST_CASE("move_experts: works if one kind has no experts") {
  const auto losses_of = [](bool moves) {
    double loss = 0;
    dist::Alone world;
    dist::run(world, 2, [&](auto& shard) {
      Cpu::Context ctx(1);
      const Mixture mixture{
          SoftmaxTopK{.scores = {.experts = 3}, .selection = {.k = 2}},
          Experts<Mlp<Gelu>, GatedMlp<Silu>>{.kinds = {Mlp<Gelu>{.model_dim = dim, .hidden_dim = 4},
                                                       GatedMlp<Silu>{.model_dim = dim, .hidden_dim = 3}},
                                             .counts = {3, 0}}};
      Trainer trainer{ctx, Residual{update::Plain{}, dist::ExpertParallel{mixture, &shard}},
                      dist::LossOfShards{MeanSquaredError{}, &shard},
                      dist::DataParallel{optim::AdamW{.lr = 0.1}, &shard}, Seed{3}};
      for (int i = 0; i < 3; ++i) {
        const double value = step(shard, trainer);
        if (shard.index() == 0) loss = value;
        if (moves && i == 0) dist::move_experts(shard, trainer, {Placement{{1, 0, 1}}});
      }
    });
    return loss;
  };
  CHECK(losses_of(true) == losses_of(false));
}
