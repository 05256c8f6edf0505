// Training on shards whose contexts are on one device or on several.

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "gatefold/distributed.hpp"
#include "gatefold/gatefold.cuh"
#include "support/larger.hpp"
#include "support/payload.hpp"
#include "support/processes.hpp"
#include "support/shard_devices.cuh"
#include "support/shard_run.hpp"
#if __has_include(<nlohmann/json.hpp>)
#include "gatefold/io.hpp"
#include "support/temp_directory.hpp"
#endif
#ifdef CUDA_EMULATOR
#include "cuda_emulator/calls.hpp"
#endif

using namespace gatefold;
using support::Processes;
using test::devices;
using test::OnDeviceOf;
using test::ShardRun;

namespace {

/// Trains on `shards` shards of `processes` processes. Threads of this process stand for the processes.
ShardRun run_on(Index shards, int on_devices, int processes = 1, bool moves = false) {
  Processes all(processes);
  ShardRun found;
  all.run([&](auto& world) {
    ShardRun of_rank = test::run_on_shards<Cuda>(world, shards, OnDeviceOf{on_devices}, moves);
    if (world.rank() == 0) found = std::move(of_rank);
  });
  return found;
}

template <class T>
std::vector<T> on_host(Cuda::Context& ctx, const T* from, Index n) {
  std::vector<T> values(static_cast<std::size_t>(n));
  Cuda::to_host(ctx, n, from, values.data());
  return values;
}

}  // namespace

TEST_CASE("cuda: training on shards is bit-identical for devices and placements") {
  for (const Index shards : {1, 2, 3, 4}) {
    CAPTURE(shards);
    const int both = devices();
    const ShardRun one = run_on(shards, 1);
    CHECK(run_on(shards, both) == one);
    if (shards == 3) CHECK(run_on(shards, both, 1, true) == one);
    if (shards > 2) CHECK(run_on(shards, both, 2) == one);
  }
}

#ifdef GATEFOLD_CPU_BESIDE
TEST_CASE("cuda: training on shards matches the CPU backend") {
  for (const Index shards : {1, 3}) {
    CAPTURE(shards);
    const ShardRun cpu = test::shard_run_on_cpu(shards), cuda = run_on(shards, devices());
    const auto difference = [](const std::vector<double>& a, const std::vector<double>& b) {
      REQUIRE(a.size() == b.size());
      double largest = 0;
      for (std::size_t i = 0; i < a.size(); ++i) largest = support::larger(largest, std::abs(a[i] - b[i]));
      return largest;
    };
    CHECK(difference(cpu.losses, cuda.losses) <= 1e-13);
    CHECK(difference(cpu.params, cuda.params) <= 1e-13);
  }
}
#endif

TEST_CASE("cuda: sharded experts give the same bits as one process") {
  constexpr Index items = 23, dim = test::run_dim;
  const auto mixture = test::run_mixture();
  using M = std::remove_const_t<decltype(mixture)>;
  Cuda::Context one;
  const auto params = init_params<double, Cuda>(mixture, one, Seed{1});
  const auto x = uniform_tensor<double>(one, Seed{2}, 1, items, dim),
             du = uniform_tensor<double>(one, Seed{3}, 1, items, dim);
  auto u = zeros_like(one, x), dx = zeros_like(one, x);
  Saved<M, double, Cuda> saved;
  mixture.forward(one, params, x, u, saved);
  auto grads = zeros_like(one, params);
  backward(mixture, one, params, x, saved, du, dx, grads);
  const auto expected = on_host(one, std::as_const(u).data(), u.size());
  std::vector<std::vector<double>> expected_grads;
  for_each_tensor([&](const Name&, const auto& g) { expected_grads.push_back(on_host(one, g.data(), g.size())); },
                  grads.expert);

  const std::vector<dist::Placement> placements{{}, {{2, 2, 2, 2, 2}}, {{1, 0, 1, 0, 1}}};
  const int on_devices = devices();
  for (const dist::Placement& placement : placements) {
    CAPTURE(placement.shard_of);
    std::atomic<int> wrong = 0;
    Processes alone(1);
    Processes::World world{&alone, 0};
    dist::run(world, 3, [&](auto& shard) {
      OnDeviceOf{on_devices}(shard.index());
      Cuda::Context ctx;
      const dist::ExpertParallel branch{mixture, &shard, placement};
      // Shard 0 has one item, shard 1 none.
      const auto first = shard.index() == 0 ? Index(0) : Index(1), count = shard.index() == 0   ? Index(1)
                                                                           : shard.index() == 1 ? Index(0)
                                                                                                : items - 1;
      const auto all = uniform_tensor<double>(ctx, Seed{2}, 1, items, dim),
                 dall = uniform_tensor<double>(ctx, Seed{3}, 1, items, dim);
      const auto of_part = init_params<double, Cuda>(branch, ctx, Seed{1});
      Tensor<double, 2, Cuda> v(count, dim), w(count, dim), dv(count, dim);
      fill(ctx, dv.view(), 0);
      Saved<std::remove_const_t<decltype(branch)>, double, Cuda> kept;
      branch.forward(ctx, of_part, all.view().rows(first, count), v, kept);
      infer(branch, ctx, of_part, all.view().rows(first, count), w);
      auto g = zeros_like(ctx, of_part);
      backward(branch, ctx, of_part, all.view().rows(first, count), kept, dall.view().rows(first, count), dv, g);
      const auto part = on_host(ctx, std::as_const(v).data(), v.size());
      wrong += !std::equal(part.begin(), part.end(), expected.begin() + first * dim);
      wrong += part != on_host(ctx, std::as_const(w).data(), w.size());
      auto whole = init_params<double, Cuda>(mixture, ctx, Seed{9});
      dist::copy_whole(shard, ctx, g, whole);
      if (shard.index() > 0) return;
      std::size_t i = 0;
      for_each_tensor(
          [&](const Name&, const auto& found) {
            wrong += on_host(ctx, found.data(), found.size()) != expected_grads[i++];
          },
          whole.expert);
    });
    CHECK(wrong == 0);
  }
}

TEST_CASE("cuda: gates on shards have the bits of one process") {
  constexpr Index items = 150, dim = 6;
  for (const Index experts : {5, 12, 40}) {  // 2, 4 and 4 threads per row; more than 64 experts would use cuBLAS
    CAPTURE(experts);
    const SoftmaxTopK gate{.scores = {.model_dim = dim, .experts = experts}, .selection = {.k = 2}};
    using Plan = Plan<SoftmaxTopK, double, Cuda>;
    Cuda::Context one;
    const auto params = init_params<double, Cuda>(gate, one, Seed{1});
    const auto x = uniform_tensor<double>(one, Seed{2}, 3, items, dim);
    Plan plan;
    Saved<SoftmaxTopK, double, Cuda> saved;
    gate.forward(one, params, x, plan, saved);
    const auto probabilities = on_host(one, saved.probabilities.data(), saved.probabilities.size()),
               weights = on_host(one, plan.weight.data(), plan.weight.size());
    std::atomic<int> wrong = 0;
    Processes alone(1);
    Processes::World world{&alone, 0};
    dist::run(world, 2, [&](auto& shard) {
      Cuda::Context ctx;
      using Global = dist::GlobalGate<SoftmaxTopK, double, Cuda>;
      const auto all = uniform_tensor<double>(ctx, Seed{2}, 3, items, dim);
      const Index first = shard.index() * 50, count = shard.index() == 0 ? 50 : items - 50;
      const auto same = init_params<double, Cuda>(gate, ctx, Seed{1});
      typename Global::Saved kept;
      Global::forward(gate, shard, ctx, same, all.view().rows(first, count), kept, {});
      wrong += on_host(ctx, kept.gate.probabilities.data(), kept.gate.probabilities.size()) != probabilities;
      wrong += on_host(ctx, kept.plan.weight.data(), kept.plan.weight.size()) != weights;
    });
    CHECK(wrong == 0);
  }
}

TEST_CASE("cuda: payload: items, results and adjoints are rounded on shards") {
  const test::PayloadCase c(false);
  const Linear linear{.model_dim = test::PayloadCase::dim, .output_dim = test::PayloadCase::out};
  for (const Index shards : {1, 3}) {
    CAPTURE(shards);
    dist::Alone world;
    const auto wrong = [&]<class B>() {
      return test::wrong_of_payload(c, test::run_payload<B>(world, c, linear, shards, {},
                                                            {.bfloat16 = true, .chunks = 2}, OnDeviceOf{devices()}));
    };
    CHECK(wrong.operator()<Cuda>() == 0);
    CHECK(wrong.operator()<CudaBf16>() == 0);
  }
}

TEST_CASE("cuda: replicated experts change no bit") {
  constexpr Index items = 23, dim = test::run_dim;
  const int on_devices = devices();
  std::atomic<int> wrong = 0;
  Processes alone(1);
  Processes::World world{&alone, 0};
  dist::run(world, 3, [&](auto& shard) {
    OnDeviceOf{on_devices}(shard.index());
    Cuda::Context ctx;
    const dist::ExpertParallel branch{test::run_mixture(), &shard};
    auto params = init_params<double, Cuda>(branch, ctx, Seed{1});
    const Index count = shard.index() == 1 ? 0 : items;
    const auto x = uniform_tensor<double>(ctx, Seed{2}, 1, count, dim);
    Tensor<double, 2, Cuda> u(count, dim), v(count, dim);
    infer(branch, ctx, params, x, u);
    dist::replicate(shard, ctx, params, std::vector<std::vector<Index>>{{90, 3, 3, 50, 3}});
    infer(branch, ctx, params, x, v);
    wrong += on_host(ctx, std::as_const(u).data(), u.size()) != on_host(ctx, std::as_const(v).data(), v.size());
    wrong += params.expert.deal->placement.copies.empty();
  });
  CHECK(wrong == 0);
}

TEST_CASE("cuda: batch norms of rules and optimizers match one process") {
  constexpr Index items = 11, dim = test::run_dim, steps = 3;
  const update::SharpnessAware rule{.rho = 0.4, .norm = update::Norm::batch};
  const optim::NormalizedGd gd{.lr = 0.1};
  const optim::Sgd sgd{.lr = 0.1};
  bool (*const is_expert)(const Name&) = [](const Name& name) {
    return name.str().find("expert.") != std::string::npos;
  };
  const auto losses_of = [&](auto& trainer, const dist::Range& mine) {
    auto& ctx = trainer.context();
    const auto x = uniform_tensor<double>(ctx, Seed{1}, 1, items, dim),
               target = uniform_tensor<double>(ctx, Seed{2}, 1, items, dim);
    std::vector<double> losses;
    for (Index i = 0; i < steps; ++i)
      losses.push_back(trainer.step(x.view().rows(mine.first, mine.count), target.view().rows(mine.first, mine.count)));
    return losses;
  };
  Cuda::Context one;
  Trainer whole{one,
                Residual{rule, test::run_mixture()},
                MeanSquaredError{},
                InGroups{is_expert, gd, sgd},
                Seed{5},
                Element<double>{}};
  const std::vector<double> expected = losses_of(whole, {0, items});
  const int on_devices = devices();
  for (const Index shards : {3, 12}) {  // of twelve shards, one has no items
    std::vector<double> found;
    Processes alone(1);
    Processes::World world{&alone, 0};
    dist::run(world, shards, [&](auto& shard) {
      OnDeviceOf{on_devices}(shard.index());
      Cuda::Context ctx;
      Trainer trainer{ctx,
                      Residual{dist::SyncNorm{rule, &shard}, dist::ExpertParallel{test::run_mixture(), &shard}},
                      dist::LossOfShards{MeanSquaredError{}, &shard},
                      dist::DataParallel{InGroups{is_expert, dist::SyncNorm{gd, &shard}, sgd}, &shard},
                      Seed{5},
                      Element<double>{}};
      const auto losses = losses_of(trainer, shard.part_of(items));
      if (shard.index() == 0) found = losses;
    });
    REQUIRE(found.size() == expected.size());
    for (std::size_t i = 0; i < found.size(); ++i) CHECK(std::abs(found[i] - expected[i]) <= 1e-13);
  }
}

TEST_CASE("cuda: all_reduce: sums table rows touched by any shard") {
  const int on_devices = devices();
  Processes alone(1);
  Processes::World world{&alone, 0};
  std::vector<std::vector<double>> sums(3);
  std::vector<std::vector<unsigned char>> marks(3);
  dist::run(world, 3, [&](auto& shard) {
    OnDeviceOf{on_devices}(shard.index());
    const auto me = static_cast<std::size_t>(shard.index());
    Cuda::Context ctx;
    test::TablePack pack;
    pack.table.resize(5, 2);
    zero(ctx, pack.table);
    // Shards 0 and 1 both touch row 1; shard 1 also touches row 3.
    const std::vector<std::vector<unsigned char>> touched{{0, 1, 0, 0, 0}, {0, 1, 0, 1, 0}, {0, 0, 0, 0, 0}};
    const std::vector<std::vector<double>> rows{
        {0, 0, 1, 2, 0, 0, 0, 0, 0, 0}, {0, 0, 10, 20, 0, 0, 5, 6, 0, 0}, std::vector<double>(10)};
    Cuda::from_host(ctx, 5, touched[me].data(), pack.table.rows().marks);
    Cuda::from_host(ctx, 10, rows[me].data(), pack.table.rows().data);
    dist::all_reduce(shard, ctx, pack);
    sums[me] = on_host<double>(ctx, pack.table.rows().data, 10);
    marks[me] = on_host<unsigned char>(ctx, pack.table.rows().marks, 5);
    if (pack.table.all_touched()) throw DeviceError("all rows are touched");
  });
  for (std::size_t j = 0; j < 3; ++j) {
    CHECK(sums[j] == std::vector<double>{0, 0, 11, 22, 0, 0, 5, 6, 0, 0});
    CHECK(marks[j] == std::vector<unsigned char>{0, 1, 0, 1, 0});
  }
}

#if __has_include(<nlohmann/json.hpp>)
TEST_CASE("cuda: checkpoint: shards continue on other devices and processes") {
  const support::TempDirectory folder;
  const auto path = [&](const char* name) { return folder.path / name; };
  const auto on = [](int processes, int on_devices, const auto& program) {
    Processes all(processes);
    all.run([&](auto& world) {
      dist::run(world, 3, [&](auto& shard) {
        OnDeviceOf{on_devices}(shard.index());
        Cuda::Context ctx;
        program(shard, ctx);
      });
    });
  };
  const auto step_twice = [](auto& shard, auto& ctx, auto& trainer) {
    for (int i = 0; i < 2; ++i) test::run_step(shard, ctx, trainer);
  };
  on(1, devices(), [&](auto& shard, auto& ctx) {
    auto trainer = test::run_trainer(shard, ctx);
    step_twice(shard, ctx, trainer);
    dist::save_checkpoint(shard, path("half"), trainer);
    dist::AsyncCheckpoint meanwhile(shard);
    meanwhile.save(path("meanwhile"), trainer);
    step_twice(shard, ctx, trainer);
    meanwhile.wait();
    dist::save_checkpoint(shard, path("end"), trainer);
  });
  CHECK(support::read_bytes(path("meanwhile")) == support::read_bytes(path("half")));
  on(2, 1, [&](auto& shard, auto& ctx) {
    auto trainer = test::run_trainer(shard, ctx, Seed{6});
    dist::load_checkpoint(shard, path("meanwhile"), trainer);
    dist::move_experts(shard, trainer, {{{2, 0, 1, 0, 2}}, {{1, 1, 1, 1, 1}}});
    step_twice(shard, ctx, trainer);
    dist::save_checkpoint(shard, path("resumed"), trainer);
  });
  CHECK(support::read_bytes(path("resumed")) == support::read_bytes(path("end")));
  CHECK(support::read_bytes(path("half")) != support::read_bytes(path("end")));
}
#endif

#ifdef CUDA_EMULATOR
TEST_CASE("cuda: a failed copy ends all shards with CUDA's message") {
  const int on_devices = devices();
  for (const long nth : {3, 40, 90}) {
    cuda_emulator::fail("cudaMemcpyAsync", nth, cudaErrorECCUncorrectable);
    CHECK_THROWS_WITH_AS(run_on(3, on_devices),
                         "cudaMemcpyAsync: cudaErrorECCUncorrectable: uncorrectable ECC error encountered",
                         DeviceError);
  }
}
#endif
