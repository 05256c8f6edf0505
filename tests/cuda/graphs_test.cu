// Graphs of passes whose context goes on with other ones: the memory that a graph uses stays where it is.

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

/// pass(batch) of few items, as a graph, before and after others of many: captured too, or not.
template <class B, class Batch, class PassT>
void check_graph(typename B::Context& ctx, Batch small, Batch large, const PassT& pass) {
  for (const bool captured : {false, true}) {
    CAPTURE(captured);
    pass(small);
    const test::Graph graph(ctx.stream(), [&] { pass(small); });
    graph.launch();
    const auto expected = on_host<float, B>(ctx, small.y);
    CHECK(expected != std::vector<float>(expected.size()));
    pass(large);
    if (captured) {
      const test::Graph other(ctx.stream(), [&] { pass(large); });
      other.launch();
    }
    auto mine = constant_tensor<float>(ctx, 7, many, dim);  // the program's, in what memory is free now
    fill(ctx, small.y, 0);
    graph.launch();
    CHECK(on_host<float, B>(ctx, small.y) == expected);
    CHECK(on_host<float, B>(ctx, mine) == std::vector<float>(static_cast<std::size_t>(many * dim), 7));
  }
}

template <class L, class B>
struct Batch {
  Tensor<float, 2, B> x, y, dx;
  Carry<L, float, B> carry{}, dcarry{};
  Saved<L, float, B> saved{};

  Batch(typename B::Context& ctx, Index items)
      : x(uniform_tensor<float>(ctx, Seed{2}, 1, items, dim)), y(zeros_like(ctx, x)), dx(zeros_like(ctx, x)) {}
};

template <class B>
void check_inference() {
  typename B::Context ctx;
  const Residual layer{update::HeavyBall{}, mixture};
  using L = std::remove_cvref_t<decltype(layer)>;
  const auto params = init_params<float, B>(layer, ctx, Seed{1});
  check_graph<B>(ctx, Batch<L, B>(ctx, few), Batch<L, B>(ctx, many), [&](Batch<L, B>& batch) {
    layer.begin(ctx, params, batch.x.extent(0), batch.carry);
    infer<float, B>(layer, ctx, params, batch.x, batch.carry, batch.y);
  });
}

}  // namespace

TEST_CASE("a graph of a small batch gives what it gave, after a larger one of its context") {
  check_inference<Cuda>();
  check_inference<CudaBf16>();
}

TEST_CASE("a graph of a training step that computes again gives what it gave, after a larger one") {
  Cuda::Context ctx;
  const Stack layer{Recompute{Residual{update::HeavyBall{}, mixture}}, 2};
  using L = std::remove_cvref_t<decltype(layer)>;
  const auto params = init_params<float, Cuda>(layer, ctx, Seed{1});
  auto grads = zeros_like(ctx, params);
  using Own = Batch<L, Cuda>;
  check_graph<Cuda>(ctx, Own(ctx, few), Own(ctx, many), [&](Own& batch) {
    const Index items = batch.x.extent(0);
    layer.begin(ctx, params, items, batch.carry);
    layer.forward(ctx, params, batch.x, batch.carry, batch.y, batch.saved);
    layer.begin(ctx, params, items, batch.dcarry);
    set_zero(ctx, grads);
    set_zero(ctx, batch.dx);
    backward(layer, ctx, params, batch.x, batch.saved, batch.y, batch.dcarry, batch.dx, grads);
    copy(ctx, std::as_const(batch.dx).view(), batch.y.view());
  });
}
