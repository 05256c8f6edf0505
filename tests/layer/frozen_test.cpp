#include "gatefold/layer/frozen.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <tuple>
#include <utility>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/core/weights.hpp"
#include "gatefold/expert/gated_mlp.hpp"
#include "gatefold/expert/linear.hpp"
#include "gatefold/expert/mlp.hpp"
#include "gatefold/expert/sigmoid_gated.hpp"
#include "gatefold/expert/zero_computation.hpp"
#include "gatefold/gate/composed_gate.hpp"
#include "gatefold/gate/soft_moe.hpp"
#include "gatefold/layer/chain.hpp"
#include "gatefold/layer/embedding.hpp"
#include "gatefold/layer/mixture.hpp"
#include "gatefold/layer/residual.hpp"
#include "gatefold/layer/stack.hpp"
#include "gatefold/loss/mean_squared_error.hpp"
#include "gatefold/optim/adamw.hpp"
#include "gatefold/train/not_trained.hpp"
#include "gatefold/train/trainer.hpp"
#include "gatefold/update/momentum.hpp"
#include "support/naive.hpp"
#include "support/quantised.hpp"

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

std::vector<float> values_of(const auto& t) { return {t.data(), t.data() + t.size()}; }

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
  CHECK(same(run<T>(ctx, layer, params, x), plain));  // nothing of the frozen model stays in the context

  // With Weights::bfloat16, the results are those of a plain model whose expert weights were rounded (float only).
  const auto rounded = freeze(ctx, layer.template init<T, Cpu>(ctx, Seed{3}), {.weights = Weights::bfloat16});
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
  for (const Index items : {1, 7, 100}) {  // few rows (weights read in place), one tile of rows, many tiles
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

TEST_CASE("freeze: quantised weights give nearly the outputs of rounded weights") {
  // Both layers have the same rounded weights, so they differ only by the rounding of the items. This rounding changes
  // each number by at most 0.5001 a / 127, where a, the largest magnitude, is at most 1. A Linear expert with one pick
  // multiplies this by its weights.
  const Index dim = 70, items = 30;
  const Mixture layer{SoftmaxTopK{.scores = {.experts = 3}, .selection = {.k = 1}}, Linear{.model_dim = dim}};
  Cpu::Context ctx(2);
  const auto x = uniform_tensor<float>(ctx, Seed{2}, 1.0, items, dim);
  for (const Weights form : naive::quantised_forms) {
    auto params = init_params<float, Cpu>(layer, ctx, Seed{1});
    const auto frozen = freeze(ctx, init_params<float, Cpu>(layer, ctx, Seed{1}), {.weights = form});
    auto& weight = params.expert.weight;
    double largest = 0;  // Σ_k |w| of a column
    for (Index e = 0; e < weight.extent(0); ++e)
      for (Index j = 0; j < dim; ++j) {
        double sum = 0;
        for (Index k = 0; k < dim; k += 32) {
          const auto group = naive::quantised(form, naive::group_of(k, dim, [&](Index i) { return weight(e, i, j); }));
          for (std::size_t i = 0; i < group.q.size(); ++i) {
            weight(e, k + Index(i), j) = static_cast<float>(group.scale * group.q[i]);
            sum += std::abs(group.scale * group.q[i]);
          }
        }
        largest = std::max(largest, sum);
      }
    Tensor<float, 2, Cpu> expected(items, dim), y(items, dim);
    infer(layer, ctx, params, x, expected);
    infer(layer, ctx, frozen, x, y);
    double worst = 0;
    for (Index i = 0; i < y.size(); ++i)
      worst = std::max(worst, std::abs(double(y.data()[i]) - double(expected.data()[i])));
    CAPTURE(static_cast<int>(form));
    CHECK(worst <= 0.5001 / 127 * largest + 1e-5);
    CHECK(worst > 0);
  }
}

TEST_CASE("freeze: batch and threads change no bit of quantised outputs") {
  const Mixture layer{SoftmaxTopK{.scores = {.experts = 6}, .selection = {.k = 2}}, GatedMlp<Silu>{70, 300}};
  const Index items = 40, dim = 70;
  for (const Weights form : naive::quantised_forms) {
    Cpu::Context one(1), three(3);
    const auto x = uniform_tensor<float>(one, Seed{2}, 1.0, items, dim);
    const auto frozen = freeze(one, init_params<float, Cpu>(layer, one, Seed{1}), {.weights = form});
    Tensor<float, 2, Cpu> all(items, dim), y(items, dim), alone(1, dim);
    infer(layer, one, frozen, x, all);
    infer(layer, three, frozen, x, y);
    CHECK(same(all, y));
    int differ = 0;
    for (Index n = 0; n < items; ++n) {
      infer(layer, one, frozen, x.view().rows(n, 1), alone);
      differ += std::memcmp(alone.data(), &all(n, 0), static_cast<std::size_t>(dim) * sizeof(float)) != 0;
    }
    CHECK(differ == 0);
  }
}

TEST_CASE("freeze: double parameters cannot have 8 or 4 bits") {
  const Mixture layer{SoftmaxTopK{.scores = {.experts = 2}, .selection = {.k = 1}}, Linear{.model_dim = 4}};
  Cpu::Context ctx(1);
  CHECK_THROWS_WITH_AS(freeze(ctx, init_params<double, Cpu>(layer, ctx, Seed{1}), {.weights = Weights::int4}),
                       "freeze: weights: expected Weights::unchanged for parameters of double, got a form of 8 or 4 "
                       "bits",
                       ArgumentError);
}

TEST_CASE("freeze: patterns choose another form for some tensors") {
  const Mixture layer{SoftmaxTopK{.scores = {.experts = 3}, .selection = {.k = 2}}, GatedMlp<Silu>{40, 20}};
  Cpu::Context ctx(1);
  const auto frozen =
      freeze(ctx, init_params<float, Cpu>(layer, ctx, Seed{1}),
             {.weights = Weights::int4, .except = {{"expert", Weights::int8}, {"**.down", Weights::bfloat16}}});
  const auto& expert = frozen.params.expert;
  const auto form = [&](const auto& t) {
    const auto found = frozen.packed.find<float>(t.data());
    return found.quantised ? found.quantised.format->group_bytes / cpu::Tile<float>::columns : found.half ? 64 : 0;
  };
  CHECK(form(expert.gate) == 34);
  CHECK(form(expert.up) == 34);
  CHECK(form(expert.down) == 64);
  CHECK_THROWS_WITH_AS(
      freeze(ctx, init_params<float, Cpu>(layer, ctx, Seed{1}), {.except = {{"experts.*", Weights::int8}}}),
      "freeze: pattern: expected the name of a tensor or of a part, got \"experts.*\"; the nearest "
      "names: expert.up, expert, expert.gate",
      ArgumentError);
}

TEST_CASE_TEMPLATE("freeze: keep_plain = false changes no bit", B, Cpu, CpuBf16) {
  const Mixture layer{SoftmaxTopK{.scores = {.experts = 3}, .selection = {.k = 2}},
                      SigmoidGated{GatedMlp<Silu>{40, 20}}};
  typename B::Context ctx(2);
  const auto x = uniform_tensor<float>(ctx, Seed{2}, 1.0, 9, 40);
  Tensor<float, 2, B> expected(9, 40), y(9, 40);
  for (const Weights form : naive::quantised_forms) {
    const auto frozen = freeze(ctx, init_params<float, B>(layer, ctx, Seed{1}),
                               {.weights = form, .except = {{"**.down", Weights::bfloat16}}, .keep_plain = false});
    const auto both = freeze(ctx, init_params<float, B>(layer, ctx, Seed{1}),
                             {.weights = form, .except = {{"**.down", Weights::bfloat16}}});
    infer(layer, ctx, both, x, expected);
    infer(layer, ctx, frozen, x, y);
    CHECK(std::memcmp(y.data(), expected.data(), static_cast<std::size_t>(y.size()) * sizeof(float)) == 0);
    const auto& expert = frozen.params.expert;
    CHECK(!has_elements(expert.expert.up.data()));
    CHECK(expert.expert.up.extent(1) == 40);
    CHECK(has_elements(expert.expert.down.data()));  // bfloat16 keeps the plain weights
    CHECK(has_elements(expert.gate.data()));         // tensors of one column stay floats
    CHECK(has_elements(both.params.expert.expert.up.data()));
    std::vector<float> values(static_cast<std::size_t>(expert.expert.up.size()));
    CHECK_THROWS_AS(B::to_host(ctx, expert.expert.up.size(), expert.expert.up.data(), values.data()), ArgumentError);
  }
}

TEST_CASE("freeze: infer throws if only some expert weights have elements") {
  const Mixture layer{SoftmaxTopK{.scores = {.experts = 3}, .selection = {.k = 2}}, GatedMlp<Silu>{40, 20}};
  Cpu::Context ctx(1);
  const auto x = uniform_tensor<float>(ctx, Seed{2}, 1.0, 9, 40);
  Tensor<float, 2, Cpu> y(9, 40);
  auto frozen =
      freeze(ctx, init_params<float, Cpu>(layer, ctx, Seed{1}), {.weights = Weights::int8, .keep_plain = false});
  CHECK_NOTHROW(infer(layer, ctx, frozen, x, y));
  frozen.params.expert.down = uniform_tensor<float>(ctx, Seed{3}, 1.0, 3, 20, 40);
  CHECK_THROWS_AS(infer(layer, ctx, frozen, x, y), ArgumentError);
}

TEST_CASE("freeze: tensors that a policy reads in place stay floats") {
  Cpu::Context ctx(1);
  const auto x = uniform_tensor<float>(ctx, Seed{2}, 1.0, 5, 16);
  const auto check = [&](const auto& layer, const auto& in_place) {
    const auto freeze_with = [&](bool keep_plain) {
      return freeze(ctx, init_params<float, Cpu>(layer, ctx, Seed{1}),
                    {.weights = Weights::int8, .keep_plain = keep_plain});
    };
    const auto plain = freeze_with(true), frozen = freeze_with(false);
    CHECK(has_elements(in_place(frozen.params).data()));
    CHECK(!plain.packed.template find<float>(in_place(plain.params).data()).quantised);
    Tensor<float, 2, Cpu> expected(5, 16), y(5, 16);
    infer(layer, ctx, plain, x, expected);
    infer(layer, ctx, frozen, x, y);
    CHECK(same(y, expected));
  };
  check(
      Mixture{SoftMoe{.count = 3, .slots = 2}, Linear{.model_dim = 16}},
      [](const auto& params) -> const auto& { return params.gate.phi; });
  check(
      Mixture{SoftmaxTopK{.scores = {.experts = 3}, .selection = {.k = 2}}, ConstantExpert{.model_dim = 16}},
      [](const auto& params) -> const auto& { return params.expert.weight; });
}

TEST_CASE("freeze: a Trainer trains the layers around quantised experts") {
  const Index dim = 8, items = 32;
  const Chain model{Mixture{SoftmaxTopK{.scores = {.experts = 4}, .selection = {.k = 2}},
                            GatedMlp<Silu>{.model_dim = dim, .hidden_dim = 12}},
                    Linear{dim, 3}};
  Cpu::Context ctx(2);
  auto params = init_params<float, Cpu>(model, ctx, Seed{1});
  // [snippet around]
  auto frozen = freeze(ctx, std::move(params), {.except = {{"**.expert", Weights::int4}}});
  const auto scope = ctx.use(frozen.packed);  // products read the packed copies as long as this object exists
  Trainer trainer{ctx, model, MeanSquaredError{}, optim::AdamW{.lr = 0.02}, Seed{2}, NotTrained{"**.expert"}};
  trainer.params = std::move(frozen.params);
  // [/snippet]
  const auto& expert = std::get<0>(trainer.params.layers).branch.expert;
  CHECK(frozen.packed.template find<float>(expert.down.data()).quantised);
  const auto before = values_of(expert.down);
  const auto x = uniform_tensor<float>(ctx, Seed{3}, 1.0, items, dim),
             target = uniform_tensor<float>(ctx, Seed{4}, 1.0, items, 3);
  const double first = trainer.step(x, target);
  double last = first;
  for (int i = 0; i < 60; ++i) last = trainer.step(x, target);
  CHECK(last < 0.9 * first);
  CHECK(values_of(expert.down) == before);
}
