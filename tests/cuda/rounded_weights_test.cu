// Training on the device with copies of rounded weights gives the same bits as without copies, also if the program
// writes parameters between steps. Assertions detect a stale copy. Copies that the program makes itself work in a graph
// too.

#include <doctest/doctest.h>

#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "gatefold/gatefold.cuh"
#include "support/graph.cuh"
#include "support/rounded_training.hpp"

using namespace gatefold;
using namespace gatefold::support;
using namespace gatefold::support::rounded_training;

namespace {

const char* const stale =
    "CudaBf16: packed weights: expected a rounded copy of the current weights (call RoundedWeights.refresh after "
    "parameters change), got 1 of 324 values that differ";

/// A forward and backward pass without a Trainer.
struct Pass {
  decltype(model()) net;
  CudaBf16::Context& ctx;
  Params<decltype(model()), float, CudaBf16> params = init_params<float, CudaBf16>(net, ctx, Seed{1}),
                                             grads = zeros_like(ctx, params);
  Tensor<float, 2, CudaBf16> x = uniform_tensor<float>(ctx, Seed{2}, 1, items, dim), y{items, dim}, dx{items, dim};
  Saved<decltype(model()), float, CudaBf16> saved{};
  Carry<decltype(model()), float, CudaBf16> carry{};

  void run() {
    net.begin(ctx, params, items, carry);
    net.forward(ctx, params, x, carry, y, saved);
    set_zero(ctx, carry);
    set_zero_later(ctx, grads);
    set_zero(ctx, dx);
    backward(net, ctx, params, x, saved, x, carry, dx, grads);
    write_zeros(grads);
  }
  std::vector<float> all() const { return values<CudaBf16>(ctx, y, dx, grads); }
  auto& up() { return params.layers[1].layer.branch.expert.up; }
};

}  // namespace

TEST_CASE("cuda: RoundedWeights: training has the same bits without copies") {
  const optim::AdamW adamw{.lr = 0.05};
  CHECK(same_with_copies<CudaBf16>(adamw, false, OneWeight{}));
  CHECK(same_with_copies<CudaBf16>(adamw, true, CopyBack{}));
  CHECK(same_with_copies<CudaBf16>(adamw, false, Replace{}));
  CHECK(same_with_copies<CudaBf16>(optim::Clipped{optim::Sgd{.lr = 0.3, .momentum = 0.9}, 0.5}));
  CHECK(same_with_copies<CudaBf16>(frozen_weights(), true, OneWeight{}));
}

TEST_CASE("cuda: RoundedWeights: products detect stale copies until refresh") {
  CudaBf16::Context ctx;
  Pass pass{model(), ctx};
  pass.run();
  const auto first = pass.all();
  RoundedWeights<CudaBf16> rounded;
  rounded.refresh(ctx, pass.params);
  const auto with_copies = [&] {
    const auto use = ctx.use(rounded.packed);
    pass.run();
    return pass.all();
  };
  CHECK(same_bits(with_copies(), first));

  const float other = 3;
  CudaBf16::from_host(ctx, 1, &other, pass.up().data() + 7);
  CHECK(!rounded.current(pass.params));
  CHECK_THROWS_WITH_AS(with_copies(), stale, ArgumentError);
  rounded.refresh(ctx, pass.params);
  const auto refreshed = with_copies();
  CHECK(!same_bits(refreshed, first));
  pass.run();
  CHECK(same_bits(pass.all(), refreshed));
}

TEST_CASE("cuda: RoundedWeights: a custom loop has the same bits") {
  const auto run = [](bool keeps) {
    CudaBf16::Context ctx;
    Pass pass{model(), ctx};
    const optim::AdamW optimizer{.lr = 0.05};
    auto state = optimizer.begin(ctx, pass.params);
    auto& params = pass.params;
    // [snippet rounded]
    RoundedWeights<CudaBf16> rounded;
    const auto forward_and_backward = [&] {
      rounded.refresh(ctx, params);              // call it after params change; it reads the weights once
      const auto use = ctx.use(rounded.packed);  // while `use` exists, products read the copies
      pass.run();
    };
    // [/snippet]
    for (int step = 0; step < 3; ++step) {
      keeps ? forward_and_backward() : pass.run();
      optimizer.step(ctx, params, pass.grads, state);
    }
    return values<CudaBf16>(ctx, pass.y, pass.grads, params);
  };
  CHECK(same_bits(run(true), run(false)));
}

TEST_CASE("cuda: RoundedWeights: assertions detect copies of other weights") {
  CudaBf16::Context ctx;
  for (const Index rows : {1, 3}) {
    auto w = uniform_tensor<float>(ctx, Seed{1}, 1, 1, rows, 13);
    RoundedWeights<CudaBf16> rounded;
    rounded.refresh(ctx, w);
    const auto expect_now = [&] {
      detail_::device::expect_rounded(ctx, w.data(), rows, 13, rounded.packed.find(w.data(), 13));
    };
    CHECK_NOTHROW(expect_now());
    const float other = 7;
    CudaBf16::from_host(ctx, 1, &other, w.data() + rows * 13 - 1);
    CHECK_THROWS_AS(expect_now(), ArgumentError);
    rounded.refresh(ctx, w);
    CHECK_NOTHROW(expect_now());
  }
}

TEST_CASE("cuda: RoundedWeights: assertions detect writes through an older view") {
  CudaBf16::Context ctx;
  Trainer trainer{ctx, model(), MeanSquaredError{}, optim::Sgd{}, Seed{1}};
  const auto x = uniform_tensor<float>(ctx, Seed{2}, 1, items, dim);
  const View<float, 3, CudaBf16> before = trainer.params.layers[0].layer.branch.expert.up;
  const float other = 3;
  trainer.accumulate(x, x);
  CudaBf16::from_host(ctx, 1, &other, before.data());
  CHECK_THROWS_WITH_AS(trainer.accumulate(x, x), stale, ArgumentError);
  trainer.forget();
  CHECK_NOTHROW(trainer.accumulate(x, x));  // the first part of a step makes new copies
  CudaBf16::from_host(ctx, 1, &other, before.data() + 1);
  trainer.keeps_rounded = false;
  CHECK_NOTHROW(trainer.step(x, x));
}

TEST_CASE("cuda: RoundedWeights: a captured refresh follows the weights") {
  CudaBf16::Context ctx;
  Pass pass{model(), ctx};
  RoundedWeights<CudaBf16> rounded;
  const auto work = [&] {
    rounded.refresh(ctx, pass.params);
    const auto use = ctx.use(rounded.packed);
    pass.run();
  };
  work();
  const test::Graph graph(ctx.stream(), work);
  for (const float other : {3.f, -5.f}) {
    CudaBf16::from_host(ctx, 1, &other, pass.up().data() + 7);
    graph.launch();
    const auto of_graph = pass.all();
    pass.run();
    CHECK(same_bits(pass.all(), of_graph));
  }
}

TEST_CASE("cuda: RoundedWeights: no copies on Cuda or for doubles") {
  CHECK(!RoundedWeights<Cuda>::exist);
  CHECK(RoundedWeights<CudaBf16>::exist);
  CudaBf16::Context ctx;
  const auto w = uniform_tensor<double>(ctx, Seed{2}, 1, 1, dim, 5);
  RoundedWeights<CudaBf16> rounded;
  rounded.refresh(ctx, w);
  CHECK(rounded.packed.size() == 0);
}

TEST_CASE("cuda: full-precision products do not read rounded copies") {
  CudaBf16::Context ctx;
  const auto a = uniform_tensor<float>(ctx, Seed{1}, 1, 6, dim);
  const auto w = uniform_tensor<float>(ctx, Seed{2}, 1, 1, dim, 5);
  const auto product = [&] {
    Tensor<float, 2, CudaBf16> c(6, 5);
    Tensor<Index, 1, CudaBf16> offsets(2);
    const Index ends[] = {0, 6};
    CudaBf16::from_host(ctx, 2, ends, offsets.data());
    const Groups<CudaBf16> groups{.offsets = offsets.view(), .rows = {}, .slots = 6};
    FullPrecision<CudaBf16>::grouped_gemm(ctx, groups, a.view(), w.view(), false, c.view(), functor::Store{});
    return values<CudaBf16>(ctx, c);
  };
  const auto expected = product();
  RoundedWeights<CudaBf16> rounded;
  rounded.refresh(ctx, w);
  const auto use = ctx.use(rounded.packed);
  CHECK(same_bits(product(), expected));
}
