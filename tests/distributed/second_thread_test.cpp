#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "gatefold/distributed.hpp"
#include "gatefold/distributed/checkpoint.hpp"
#include "gatefold/gatefold.hpp"
#include "gatefold/train/checkpoint.hpp"
#include "support/pass.hpp"
#include "support/second_thread.hpp"
#include "support/temp_directory.hpp"

using namespace gatefold;
using support::Interrupted;
using support::Interruption;
using support::on_second_thread;
using support::same_bits;
using support::values;

namespace {

constexpr Index kDim = 6, kItems = 12, kFew = 2;

auto mixture() {
  return Mixture{SoftmaxTopK{.scores = {.experts = 4}, .selection = {.k = 2}},
                 Mlp<Gelu>{.model_dim = kDim, .hidden_dim = 7}};
}
auto model(const auto& branch, Interruption& at) {
  const Residual layer{update::HeavyBall{.mu = 0.7, .gamma = 0.9}, branch};
  return Chain{layer, Interrupted{kDim, &at}, layer};
}
/// Returns the items of a shard.
auto batch(auto& shard, std::uint64_t seed) {
  Cpu::Context ctx(1);
  return uniform_tensor<float>(ctx, Seed{seed}.fork(static_cast<std::uint64_t>(shard.index())), 1, kItems, kDim);
}

}  // namespace

TEST_CASE("Trainer on shards: a second thread throws, changes no step") {
  const support::TempDirectory folder;
  const std::filesystem::path path = folder.file();
  for (const Index shards : {1, 2}) {
    dist::Alone world;
    dist::run(world, shards, [&](auto& shard) {
      Interruption at;
      const auto x = batch(shard, 1), target = batch(shard, 2), others = batch(shard, 3);
      Tensor<float, 2, Cpu> y(kFew, kDim);
      const auto check = [&](auto& trainer, auto& disturbed) {
        Cpu::Context& ctx = disturbed.context();
        const auto few = [&](const auto& of) { return of.view().rows(0, kFew); };
        const auto even = dist::placements(disturbed);
        AsyncCheckpoint alone;
        dist::AsyncCheckpoint checkpoint(shard);
        const std::vector<std::function<void()>> calls{
            [&] { disturbed.infer(few(others), y); },
            [&] { disturbed.step(few(others), few(others)); },
            [&] { disturbed.evaluate(few(others), few(others)); },
            [&] { disturbed.forget(); },
            [&] { dist::all_reduce(shard, ctx, disturbed.grads); },
            [&] { dist::move_experts(shard, disturbed, even); },
            [&] { dist::replicate_experts(shard, ctx, disturbed.params, even); },
            [&] { dist::save_checkpoint(shard, path, disturbed); },
            [&] { dist::load_checkpoint(shard, path, disturbed); },
            [&] { checkpoint.save(path, disturbed); },
            [&] { alone.save(path, disturbed); },
            [&] { save_checkpoint(path, disturbed); },
            [&] { load_checkpoint(path, disturbed); },
            [&] { disturbed.optimizer.step(ctx, disturbed.params, disturbed.grads, disturbed.state, {}); }};
        std::size_t i = 0;
        for (const auto& call : calls) {
          CAPTURE(i++);
          std::string said = "not reached";
          const double expected = trainer.step(x, target);
          at.f = [&] { said = on_second_thread(call); };
          CHECK(disturbed.step(x, target) == expected);
          CHECK(said == support::second_thread_refused);
          CHECK(same_bits(values(disturbed.params, disturbed.state), values(trainer.params, trainer.state)));
          CHECK(trainer.state.step == disturbed.state.step);
        }
      };
      Cpu::Context one(1), two(1);
      const dist::DataParallel optimizer{optim::Clipped{dist::Zero{optim::AdamW{.lr = 0.1}, &shard}, 1.0}, &shard};
      const dist::LossOfShards loss{MeanSquaredError{}, &shard};
      Interruption unused;
      const dist::ExpertParallel branch{mixture(), &shard};
      Trainer trainer{one, model(branch, unused), loss, optimizer, Seed{1}};
      Trainer disturbed{two, model(branch, at), loss, optimizer, Seed{1}};
      check(trainer, disturbed);
    });
  }
  CHECK(folder.entries() == 0);
}

TEST_CASE("Shard: a second thread throws during an exchange") {
  dist::Alone world;
  dist::run(world, 1, [&](auto& shard) {
    double value = 1;
    const std::vector<std::function<void()>> calls{[&] { shard.barrier(); }, [&] { shard.sum(&value, 1); },
                                                   [&] { shard.sum(1.0); }, [&] { shard.all_gather(value); },
                                                   [&] { shard.exchange({}, {}); }};
    const std::vector<Index> counts{1};
    double from = 7, to = 0;
    for (const auto& call : calls) {
      std::string said = "not reached";
      const auto out = shard.bytes(&from, 1);
      const auto in = shard.room(&to, 1);
      shard.exchange(dist::HostMemory{}, std::span(&out, 1), std::span(&in, 1), [&] { said = on_second_thread(call); });
      CHECK(said ==
            "Shard: thread: expected one at a time (use one shard per thread), got a second thread while the first is "
            "inside a call");
      CHECK(to == 7);
    }
    CHECK(value == 1);
  });
}
