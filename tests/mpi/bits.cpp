// Trains compositions of tests/descriptors on four shards and writes their checkpoints into a folder. Each composition
// is trained for half of the steps, saved, loaded and continued. Some are also trained with experts that move between
// shards, or with exchanges in bfloat16 or in chunks. Also writes the outputs of a model that serves with and without
// copies of its experts. bits.sh compares the files that 1 to 4 processes write. Four processes with two threads each
// act as two nodes, between which dist::Hierarchical combines messages.
//
//   mpirun -n R bits FOLDER THREADS
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <string>
#include <type_traits>
#include <vector>

#include "descriptors/composition.hpp"
#include "descriptors/extras.hpp"
#include "gatefold/distributed.hpp"
#include "gatefold/gatefold.hpp"
#include "gatefold/io.hpp"
#include "gatefold/mpi.hpp"

using namespace gatefold;
using namespace gatefold::rows;

namespace {

constexpr Index shards = 4, sequences = 7, items = sequences * odd.sequence;
// Placements and batch sizes repeat after 12 steps, so all of them occur before the checkpoint and after it.
#ifdef GATEFOLD_SLOW_TESTS
constexpr Index steps = 50;
#else
constexpr Index steps = 24;
#endif

/// Moves experts after each step, with four placements in turn: on shards 0 and 1, all on one shard, on shards 0 and 2,
/// and a placement with even loads.
template <class TrainerT>
void move(auto& shard, TrainerT& trainer, dist::ExpertLoads& loads) {
  const auto step = static_cast<Index>(trainer.state.step);
  loads.add(shard, trainer);
  if (step % 4 == 3) {
    dist::rebalance(shard, trainer, loads, dist::LongestFirst{.gain = 0});
    return;
  }
  auto placements = dist::placements(trainer);
  for (dist::Placement& p : placements)
    for (Index e = 0; e < p.experts(); ++e)
      p.shard_of[static_cast<std::size_t>(e)] = step % 4 == 0   ? (e * e + step) % shards
                                                : step % 4 == 1 ? step % shards
                                                                : 2 * (e % 2);
  dist::move_experts(shard, trainer, placements);
}

/// rule_of and optimizer_of return the update rule and the optimizer of a composition. For SharpnessAware, both compute
/// norms over the batches of all shards.
template <class RuleT>
auto rule_of(auto& shard, const RuleT& rule) {
  if constexpr (std::is_same_v<RuleT, update::SharpnessAware>) {
    return dist::SyncNorm{rule, &shard};
  } else {
    return rule;
  }
}
template <class RuleT>
auto optimizer_of(auto& shard, const RuleT&) {
  if constexpr (std::is_same_v<RuleT, update::SharpnessAware>) {
    const auto is_expert = [](const Name& name) { return name.str().find(".expert.") != std::string::npos; };
    return InGroups{+is_expert, dist::SyncNorm{optim::NormalizedGd{.lr = 1e-2}, &shard}, optim::Sgd{.lr = 1e-2}};
  } else {
    return optim::Clipped{dist::Zero{optim::AdamW{.lr = 1e-3}, &shard}, 0.5};
  }
}

/// Trains one composition. After half of the steps, the run is saved, loaded again and continued.
template <class ShardT, class C>
void train(ShardT& shard, const C& c, int threads, const std::filesystem::path& folder, const std::string& name,
           bool moves = false, dist::ExchangeOptions exchange = {}) {
  Cpu::Context ctx(threads, true);
  const auto mixture = Mixture{c.gate(odd), c.expert.make(odd)};
  const auto rule = c.rule.make(odd);
  const auto model = c.layer.make(odd, rule_of(shard, rule), dist::ExpertParallel{mixture, &shard, {}, exchange});
  using Layer = std::remove_const_t<decltype(model)>;
  const auto begin = [&] {
    return Trainer{ctx, model, dist::LossOfShards{MeanSquaredError{}, &shard},
                   dist::DataParallel{optimizer_of(shard, rule), &shard}, Seed{7}};
  };
  const Extras<float> extras(items, odd.item());
  dist::ExpertLoads loads;
  const auto step = [&](auto& trainer) {
    // The sizes of the batches differ. In some batches, a shard has no items.
    const auto number = static_cast<std::uint64_t>(trainer.state.step);
    const Index some = static_cast<Index>(number % 3 == 2 ? 2 : number % 3 == 1 ? 5 : sequences);
    auto x = uniform_tensor<float>(ctx, Seed{100 + number}, 1, items, odd.item());
    for (Index i = 0; i < x.size(); i += 2) x.data()[i] += 1;  // some experts get more items than others
    const auto y = uniform_tensor<float>(ctx, Seed{200 + number}, 1, items, model.out_dim());
    const auto mine = shard.part_of(some);
    const Index first = mine.first * odd.sequence, count = mine.count * odd.sequence;
    const auto extra =
        extras.of<Extra<Layer, float, Cpu>>({.length = odd.sequence, .noise = true, .padding = true}, first, count);
    trainer.step(x.view().rows(first, count), y.view().rows(first, count), extra);
    if (moves) move(shard, trainer, loads);
  };
  {
    auto trainer = begin();
    while (trainer.state.step < steps / 2) step(trainer);
    dist::save_checkpoint(shard, folder / (name + ".half"), trainer);
  }
  auto trainer = begin();
  dist::load_checkpoint(shard, folder / (name + ".half"), trainer);
  while (trainer.state.step < steps) step(trainer);
  dist::save_checkpoint(shard, folder / name, trainer);
}

/// Writes the outputs of a model for some batches. If `copies` is true, each batch has copies of different experts.
template <class ShardT>
void serve(ShardT& shard, int threads, const std::filesystem::path& path, bool copies) {
  constexpr Index dim = 8, experts = 6, layers = 2;
  Cpu::Context ctx(threads, true);
  const Stack model{
      Residual{update::HeavyBall{},
               dist::ExpertParallel{Mixture{SoftmaxTopK{.scores = {.experts = experts}, .selection = {.k = 2}},
                                            Mlp<Gelu>{.model_dim = dim, .hidden_dim = 13}},
                                    &shard}},
      layers};
  auto params = init_params<float, Cpu>(model, ctx, Seed{5});
  std::ofstream file;
  if (shard.index() == 0) file.open(path, std::ios::binary);
  for (const Index of_batch : {Index(37), Index(2), Index(64)}) {  // in the batch of two items, some shards have none
    if (copies) {
      std::vector<std::vector<Index>> loads(layers, std::vector<Index>(experts, 3));
      for (std::size_t l = 0; l < loads.size(); ++l)
        loads[l][static_cast<std::size_t>(of_batch + shards) % experts] = 90;
      dist::replicate(shard, ctx, params, loads, dist::HottestFirst{.extra = of_batch % 3});
    }
    const auto x = uniform_tensor<float>(ctx, Seed{static_cast<std::uint64_t>(of_batch)}, 1, of_batch, dim);
    const auto mine = shard.part_of(of_batch);
    Tensor<float, 2, Cpu> y(mine.count, dim), all(of_batch, dim);
    Carry<std::remove_const_t<decltype(model)>, float, Cpu> carry;
    model.begin(ctx, params, mine.count, carry);
    infer(model, ctx, params, x.view().rows(mine.first, mine.count), carry, y);
    std::vector<Index> counts;
    for (Index j = 0; j < shards; ++j) counts.push_back(dim * dist::Range::of(of_batch, j, shards).count);
    shard.gather(dist::HostMemory{}, y.data(), counts, all.data());
    file.write(reinterpret_cast<const char*>(all.data()), all.size() * static_cast<Index>(sizeof(float)));
  }
}

}  // namespace

int main(int, char** argv) {
  const std::filesystem::path folder = argv[1];
  const int threads = std::atoi(argv[2]);
  dist::Mpi world{{.timeout = 60, .progress = threads == 2}};
  try {
    dist::Hierarchical nodes(world, world.size() == 4 && threads == 2 ? 2 : 1);
    dist::run(nodes, shards, [&](auto& shard) {
      const auto one = [&](const auto& c, const char* name) { train(shard, c, threads, folder, name); };
      // These compositions exchange logits, exchange items, compute a loss and a capacity over the batch, or keep their
      // plans on their shard. Each of them has a different rule, layer and expert.
      const Composition crossing{linear_scores, independent, top_k, z_loss, with_shared, heavy_ball, mlp};
      one(crossing, "top_k");
      train(shard, crossing, threads, folder, "top_k.moves", true);
      train(shard, crossing, threads, folder, "top_k.chunks", false, {.chunks = 2});
      train(shard, crossing, threads, folder, "bfloat16", false, {.bfloat16 = true});
      train(shard, crossing, threads, folder, "bfloat16.moves", true, {.bfloat16 = true, .chunks = 2});
      one(Composition{jitter, token_similarity, sigmoid_bias, balance, pre_norm, nesterov, experts}, "sigmoid_bias");
      one(Composition{cosine_scores, independent, capacity, importance, residual, adam, gated_mlp}, "capacity");
      one(Composition{linear_scores, independent, noisy_top_k, load, dropout, robust, linear}, "noisy_top_k");
      const Composition staying{absent, absent, soft_moe, absent, stack, learned_heavy_ball, hidden_dropout};
      one(staying, "soft_moe");
      train(shard, staying, threads, folder, "soft_moe.moves", true);
      // The rule and the optimizer of this composition compute norms over the batch.
      const Composition normed{linear_scores, independent, top_k, absent, residual, sharpness_of_batch, mlp};
      one(normed, "sharpness_aware");
      train(shard, normed, threads, folder, "sharpness_aware.moves", true);
      serve(shard, threads, folder / "served", false);
      serve(shard, threads, folder / "served.copies", true);
    });
  } catch (const std::exception& error) {
    world.fail(error.what());
    std::cerr << "rank " << world.rank() << ": " << error.what() << std::endl;
    return 1;
  }
}
