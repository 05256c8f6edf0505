// Graphs of passes. Their context runs other passes later, and these must not move or reuse the memory that a graph
// uses.

#include <doctest/doctest.h>

#include <type_traits>
#include <utility>
#include <vector>

#include "gatefold/gatefold.cuh"
#include "support/graph.cuh"

using namespace gatefold;

namespace {

constexpr Index dim = 8, few = 4, many = 400;

const Mixture mixture{SoftmaxTopK{.scores = {.experts = 4}, .selection = {.k = 2}},
                      Mlp<Gelu>{.model_dim = dim, .hidden_dim = 12}};

template <class T, class B>
std::vector<T> on_host(typename B::Context& ctx, const Tensor<T, 2, B>& t) {
  std::vector<T> values(static_cast<std::size_t>(t.size()));
  B::to_host(ctx, t.size(), t.data(), values.data());
  return values;
}

template <class L, class B>
struct Batch {
  Tensor<float, 2, B> x, y, dx;
  Carry<L, float, B> carry{}, dcarry{};
  Saved<L, float, B> saved{};

  Batch(typename B::Context& ctx, Index items)
      : x(uniform_tensor<float>(ctx, Seed{2}, 1, items, dim)), y(zeros_like(ctx, x)), dx(zeros_like(ctx, x)) {}
};

/// Captures pass(), which leaves its results in y, and replays the graph before and after other passes of the context.
/// The other passes run directly, and in a second round also as a graph.
template <class B, class PassT, class OtherT>
void check_graph(typename B::Context& ctx, Tensor<float, 2, B>& y, const PassT& pass, const OtherT& other) {
  for (const bool captured : {false, true}) {
    CAPTURE(captured);
    pass();
    const test::Graph graph(ctx.stream(), pass);
    graph.launch();
    const auto expected = on_host<float, B>(ctx, y);
    CHECK(expected != std::vector<float>(expected.size()));
    other();
    if (captured) test::Graph(ctx.stream(), other).launch();
    auto mine = constant_tensor<float>(ctx, 7, many, dim);  // a tensor of the program may take any memory that is free
    fill(ctx, y, 0);
    graph.launch();
    CHECK(on_host<float, B>(ctx, y) == expected);
    CHECK(on_host<float, B>(ctx, mine) == std::vector<float>(static_cast<std::size_t>(many * dim), 7));
  }
}

template <class B>
void check_inference() {
  typename B::Context ctx;
  const Residual layer{update::HeavyBall{}, mixture};
  using L = std::remove_cvref_t<decltype(layer)>;
  const auto params = init_params<float, B>(layer, ctx, Seed{1});
  Batch<L, B> small(ctx, few), large(ctx, many);
  const auto pass = [&](Batch<L, B>& batch) {
    layer.begin(ctx, params, batch.x.extent(0), batch.carry);
    infer<float, B>(layer, ctx, params, batch.x, batch.carry, batch.y);
  };
  check_graph<B>(
      ctx, small.y, [&] { pass(small); }, [&] { pass(large); });
}

/// A training step without the optimizer, with a given number of items.
template <class L>
struct Step {
  Cuda::Context& ctx;
  L layer;
  Batch<L, Cuda> batch;
  Params<L, float, Cuda> params = init_params<float, Cuda>(layer, ctx, Seed{1}), grads = zeros_like(ctx, params);

  Step(Cuda::Context& c, const L& l, Index items) : ctx(c), layer(l), batch(c, items) {}
  void operator()() {
    const Index items = batch.x.extent(0);
    layer.begin(ctx, params, items, batch.carry);
    layer.forward(ctx, params, batch.x, batch.carry, batch.y, batch.saved);
    layer.begin(ctx, params, items, batch.dcarry);
    set_zero(ctx, grads);
    set_zero(ctx, batch.dx);
    backward(layer, ctx, params, batch.x, batch.saved, batch.y, batch.dcarry, batch.dx, grads);
  }
};

}  // namespace

TEST_CASE("graph: inference replays unchanged after a larger batch") {
  check_inference<Cuda>();
  check_inference<CudaBf16>();
}

TEST_CASE("graph: a Recompute step replays unchanged after other steps") {
  Cuda::Context ctx;
  const Residual layer{update::HeavyBall{}, mixture};
  Step deep(ctx, Recompute{Stack{layer, 3}}, few), large(ctx, deep.layer, many),
      shallow(ctx, Recompute{Stack{layer, 2}}, few);
  check_graph<Cuda>(
      ctx, deep.batch.dx, [&] { deep(); },
      [&] {
        large();
        shallow();
      });
}
