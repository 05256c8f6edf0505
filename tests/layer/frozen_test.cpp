#include "gatefold/layer/frozen.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <tuple>
#include <utility>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/expert/gated_mlp.hpp"
#include "gatefold/expert/linear.hpp"
#include "gatefold/expert/mlp.hpp"
#include "gatefold/gate/composed_gate.hpp"
#include "gatefold/layer/chain.hpp"
#include "gatefold/layer/embedding.hpp"
#include "gatefold/layer/mixture.hpp"
#include "gatefold/layer/residual.hpp"
#include "gatefold/layer/stack.hpp"
#include "gatefold/update/heavy_ball.hpp"
#include "support/naive.hpp"

using namespace gatefold;

namespace {

template <class T, class L>
Tensor<T, 2, Cpu> run(Cpu::Context& ctx, const L& layer, const auto& params, View<const T, 2, Cpu> x) {
  Tensor<T, 2, Cpu> y(x.extent(0), layer.out_dim());
  Carry<L, T, Cpu> carry;
  if constexpr (requires { params.params; }) {
    layer.begin(ctx, params.params, x.extent(0), carry);
    infer<T, Cpu>(layer, ctx, params, x, carry, y);
  } else {
    layer.begin(ctx, params, x.extent(0), carry);
    infer<T, Cpu>(layer, ctx, params, x, carry, y);
  }
  return y;
}

template <class T>
bool same(const Tensor<T, 2, Cpu>& a, const Tensor<T, 2, Cpu>& b) {
  return std::memcmp(a.data(), b.data(), static_cast<std::size_t>(a.size()) * sizeof(T)) == 0;
}

template <class T, class E>
void check(const E& expert, Index items) {
  const Stack layer{
      Residual{update::HeavyBall{}, Mixture{SoftmaxTopK{.scores = {.experts = 5}, .selection = {.k = 2}}, expert}}, 2};
  Cpu::Context ctx(2);
  auto params = layer.template init<T, Cpu>(ctx, Seed{3});
  const auto values = naive::random_vector<T>(items * expert.in_dim(), 5);
  const View<const T, 2, Cpu> x(values.data(), items, expert.in_dim());
  const auto plain = run<T>(ctx, layer, params, x);

  auto same_params = layer.template init<T, Cpu>(ctx, Seed{3});
  const auto frozen = freeze(ctx, std::move(same_params));
  CHECK(frozen.packed.template find<T>(nullptr).full == nullptr);
  CHECK(same(run<T>(ctx, layer, frozen, x), plain));
  CHECK(same(run<T>(ctx, layer, params, x), plain));  // nothing of it stays in the context

  // Rounded weights are those of a plain model whose expert weights were rounded.
  const auto rounded = freeze(ctx, layer.template init<T, Cpu>(ctx, Seed{3}), {.bfloat16 = true});
  if constexpr (std::is_same_v<T, float>)
    for_each_tensor(
        [](const Name&, auto& t) {
          if constexpr (std::remove_reference_t<decltype(t)>::rank == 3)
            for (Index i = 0; i < t.size(); ++i) t.data()[i] = Bfloat16::from(t.data()[i]);
        },
        params);
  const auto of_rounded = run<T>(ctx, layer, params, x);
  CHECK(same(run<T>(ctx, layer, rounded, x), of_rounded));
  CHECK(same(of_rounded, plain) == !std::is_same_v<T, float>);
}

}  // namespace

TEST_CASE_TEMPLATE("freeze: frozen parameters give the bits of plain ones", T, float, double) {
  for (const Index items : {1, 7, 100}) {  // weights read in place, one tile, many
    check<T>(Mlp<Gelu>{.model_dim = 37, .hidden_dim = 300}, items);
    check<T>(GatedMlp<Silu>{.model_dim = 37, .hidden_dim = 300}, items);
    check<T>(GatedMlp<ClampedSilu, ClampedPlusOne>{.model_dim = 37, .hidden_dim = 30, .bias = true}, items);
    check<T>(Linear{.model_dim = 37}, items);
  }
}

TEST_CASE("freeze: a model that reads ids can be frozen") {
  const Chain layer{Embedding{.vocabulary = 7, .model_dim = 5},
                    Mixture{SoftmaxTopK{.scores = {.experts = 3}, .selection = {.k = 2}}, Linear{.model_dim = 5}}};
  using Layer = AsLayer<decltype(layer), float, Cpu>;
  Cpu::Context ctx(1);
  auto params = layer.init<float, Cpu>(ctx, Seed{3});
  const std::vector<Index> ids{1, 6, 0, 1};
  const auto read = [&](const auto& weights) {
    Tensor<float, 2, Cpu> y(4, 5);
    Carry<Layer, float, Cpu> carry;
    layer.begin(ctx, model_params(weights), 4, carry);
    infer(layer, ctx, weights, ids, carry, y);
    return y;
  };
  const auto plain = read(params);
  const auto frozen = freeze(ctx, std::move(params));
  CHECK(frozen.packed.find<float>(std::get<1>(frozen.params.layers).branch.expert.weight.data()).full != nullptr);
  CHECK(same(read(frozen), plain));
}

TEST_CASE("freeze: a single branch gives the bits of plain parameters") {
  const Mixture branch{SoftmaxTopK{.scores = {.experts = 4}, .selection = {.k = 2}}, GatedMlp<Silu>{8, 16}};
  const auto check = [&]<class T, class B>(T, B) {
    typename B::Context ctx(2);
    auto params = init_params<T, B>(branch, ctx, Seed{1});
    const auto x = uniform_tensor<T>(ctx, Seed{2}, 1.0, 6, 8);
    Tensor<T, 2, B> plain(6, 8), u(6, 8);
    infer(branch, ctx, params, x, plain);
    const auto frozen = freeze(ctx, std::move(params));
    const std::vector<T> valid{1, 1, 0, 1, 1, 1};
    Extra<decltype(branch), T, B> extra{};
    extra.valid = valid;
    infer(branch, ctx, frozen, x, u, extra);
    CHECK(u(2, 0) == 0);
    for (Index n : {0, 1, 3, 4, 5})
      for (Index j = 0; j < 8; ++j) CHECK(u(n, j) == plain(n, j));
    infer(branch, ctx, frozen, x, u);
    CHECK(std::memcmp(u.data(), plain.data(), sizeof(T) * 48) == 0);
  };
  check(float{}, Cpu{});
  check(double{}, Cpu{});
  check(float{}, CpuBf16{});
}
