#include "gatefold/gate/composed_gate.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "gatefold/check/conformance.hpp"
#include "gatefold/expert/mlp.hpp"
#include "gatefold/gate/auxiliary/balance_loss.hpp"
#include "gatefold/gate/auxiliary/z_loss.hpp"
#include "gatefold/gate/mixing/token_similarity.hpp"
#include "gatefold/gate/scores/linear_scores.hpp"
#include "gatefold/gate/scores/patch_scores.hpp"
#include "gatefold/gate/selection/capacity.hpp"
#include "gatefold/gate/selection/noisy_top_1.hpp"
#include "gatefold/gate/selection/noisy_top_k.hpp"
#include "gatefold/layer/mixture.hpp"
#include "support/naive_moe.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

/// A row functor like that of TopK, but its functions get only the number of the row, no pointer to it.
template <class PickT>
struct Numbered {
  PickT pick;
  template <class Lanes>
  void operator()(const Lanes& lanes, Index n) const {
    pick(lanes, n);
  }
  template <class Lanes>
  void choose(const Lanes& lanes, Index n) const {
    pick.choose(lanes, n);
  }
  template <class Lanes>
  void weigh(const Lanes& lanes, Index n) const {
    pick.weigh(lanes, n);
  }
};
struct NumberedTopK {
  TopK top{};
  template <class T, class B>
  void forward(typename B::Context& ctx, const Nothing<T, B>& p, const Candidates<T, B>& c, SparsePlan<T, B>& plan,
               Nothing<T, B>& saved, const Nothing<T, B>& extra) const {
    top.forward(ctx, p, c, plan, saved, extra);
  }
  template <class T, class B>
  Numbered<functor::PickTopK<T, B>> rows(const Candidates<T, B>& c, SparsePlan<T, B>& plan,
                                         const Nothing<T, B>& extra) const {
    return {top.rows(c, plan, extra)};
  }
  template <class T, class B>
  void backward(typename B::Context& ctx, const Nothing<T, B>& p, const Candidates<T, B>& c,
                const SparsePlan<T, B>& plan, const Nothing<T, B>& saved, const typename SparsePlan<T, B>::Grad& dplan,
                const CandidatesGrad<T, B>& d, Nothing<T, B>& grads, const Nothing<T, B>& extra) const {
    top.backward(ctx, p, c, plan, saved, dplan, d, grads, extra);
  }
};

/// A mixing like Independent, but its ranks lack the last item.
struct RanksOneFewer {
  Independent mixing{};
  template <class T, class B>
  void forward(typename B::Context& ctx, const Nothing<T, B>& p, In<T, 2, B> x, In<T, 2, B> z, Out<T, 2, B> q,
               Nothing<T, B>& saved, const Nothing<T, B>& extra) const {
    mixing.forward(ctx, p, x, z, q, saved, extra);
  }
  template <class T, class B>
  View<const T, 2, B> rank(View<const T, 2, B> z, const Nothing<T, B>&) const {
    return z.rows(0, z.extent(0) - 1);
  }
  template <class T, class B>
  void backward(typename B::Context& ctx, const Nothing<T, B>& p, In<T, 2, B> x, In<T, 2, B> z, In<T, 2, B> q,
                const Nothing<T, B>& saved, In<T, 2, B> drank, In<T, 2, B> dq, Out<T, 2, B> dz, Out<T, 2, B> dx,
                Nothing<T, B>& grads, const Nothing<T, B>& extra, Nothing<T, B>& dextra) const {
    mixing.backward(ctx, p, x, z, q, saved, drank, dq, dz, dx, grads, extra, dextra);
  }
};

/// A gate without a layer.
template <class Gate>
struct Alone {
  Cpu::Context ctx{1};
  Gate gate;
  Params<Gate, double, Cpu> params, grads;
  Tensor<double, 2, Cpu> x, dx;
  typename Gate::template Plan<double, Cpu> plan;
  Saved<Gate, double, Cpu> saved;
  Extra<Gate, double, Cpu> extra{};

  Alone(const Gate& g, Index items) : Alone(g, items, g.scores.model_dim) {}
  Alone(const Gate& g, Index items, Index width)
      : gate(g),
        params(init_params<double, Cpu>(gate, ctx, Seed{1})),
        grads(zeros_like(ctx, params)),
        x(uniform_tensor<double>(ctx, Seed{2}, 1, items, width)),
        dx(constant_tensor<double>(ctx, 0, items, width)) {}
  void forward() { gate.forward(ctx, params, x, plan, saved, extra); }
};

using Balanced = WithAuxiliary<SoftmaxTopK, Balance, ZLoss>;
Balanced balanced() {
  return {.scores = {.model_dim = 5, .experts = 4},
          .selection = {.k = 2},
          .auxiliary = {Balance{.weight = 0.5}, ZLoss{.weight = 0.25}}};
}

}  // namespace

TEST_CASE("ComposedGate (1): runs scores, then mixing, then selection") {
  for (const bool renormalise : {false, true}) {
    Alone a(SoftmaxTopK{.scores = {.model_dim = 5, .experts = 4}, .selection = {.k = 2, .renormalise = renormalise}},
            9);
    a.forward();
    for (Index n = 0; n < 9; ++n) {
      const auto z = naive::logits(a.params.scores, naive::row(a.x, n)), q = naive::softmax(z);
      const auto best = naive::best(z, 2);
      CHECK(difference(naive::row(a.saved.logits, n), z) <= 1e-14);
      CHECK(difference(naive::row(a.saved.probabilities, n), q) <= 1e-14);
      double total = 0;
      for (const Index e : best) total += q[static_cast<std::size_t>(e)];
      for (Index j = 0; j < 2; ++j) {
        const Index e = best[static_cast<std::size_t>(j)];
        CHECK(a.plan.item(2 * n + j) == n);
        CHECK(a.plan.expert(2 * n + j) == e);
        CHECK(a.plan.weight(2 * n + j) ==
              doctest::Approx(q[static_cast<std::size_t>(e)] / (renormalise ? total : 1)).epsilon(1e-13));
      }
    }
  }
}

TEST_CASE("ComposedGate: gradients of weights and losses equal finite differences") {
  Alone a(balanced(), 7);
  a.forward();
  const auto c = uniform_tensor<double>(a.ctx, Seed{5}, 1, 14);
  {
    auto mark = a.ctx.mark();
    auto dplan = a.plan.grad(a.ctx);
    copy(a.ctx, c, dplan.weight);
    ExtraGrad<Balanced, double, Cpu> dextra;
    a.gate.backward(a.ctx, a.params, a.x, a.plan, a.saved, dplan, a.dx, a.grads, a.extra, dextra);
  }
  std::vector<check::GradientSlot> slots{{"x", a.x.data(), a.dx.data(), a.x.size()}};
  for_each_tensor(
      [&](const Name& name, auto& p, const auto& g) {
        slots.push_back({name.str(), p.data(), g.data(), p.size()});
      },
      a.params, std::as_const(a.grads));
  REQUIRE(slots.size() == 3);
  CHECK(slots[1].name == "scores.weight");
  CHECK(slots[2].name == "scores.bias");
  const auto report = check::compare_gradients(
      slots,
      [&] {
        a.forward();
        double f = a.saved.auxiliary(0) + a.saved.auxiliary(1);
        for (Index i = 0; i < 14; ++i) f += c(i) * a.plan.weight(i);
        return f;
      },
      [&] {
        std::uint64_t hash = 0;
        for (Index i = 0; i < 14; ++i) hash = mix64(hash ^ static_cast<std::uint64_t>(a.plan.expert(i)));
        return hash;
      },
      {});
  CHECK_MESSAGE(report, report.str());
}

TEST_CASE("ComposedGate: losses keep their order; later evaluations add none") {
  Alone a(balanced(), 7);
  a.forward();
  Tensor<double, 1, Cpu> value(1);
  const GateOutcome<double, Cpu> outcome{a.saved.logits, a.saved.probabilities, a.plan, {}};
  REQUIRE(a.saved.auxiliary.size() == 2);
  Balance{.weight = 0.5}.forward<double, Cpu>(a.ctx, outcome, value);
  CHECK(a.saved.auxiliary(0) == value(0));
  ZLoss{.weight = 0.25}.forward<double, Cpu>(a.ctx, outcome, value);
  CHECK(a.saved.auxiliary(1) == value(0));
  a.extra = without_auxiliary(a.extra);
  a.forward();
  CHECK(a.saved.auxiliary.size() == 0);
}

TEST_CASE("ComposedGate: padding gets no expert; other items keep their bits") {
  Alone a(balanced(), 4);
  a.forward();
  const auto expert = values(a.plan.expert);
  const auto weight = values(a.plan.weight);
  const double all = a.saved.auxiliary(0);
  const std::vector<double> mask{1, 0, 1, 1};
  a.extra.valid = mask;
  for (Index d = 0; d < 5; ++d) a.x(1, d) = quiet_nan;
  a.forward();
  for (Index p = 0; p < 8; ++p) {
    if (p / 2 == 1) CHECK(a.plan.expert(p) < 0);
    if (p / 2 != 1) CHECK(static_cast<double>(a.plan.expert(p)) == expert[static_cast<std::size_t>(p)]);
    if (p / 2 != 1) CHECK(a.plan.weight(p) == weight[static_cast<std::size_t>(p)]);
  }
  CHECK(a.plan.offsets(4) == 6);
  CHECK(a.saved.auxiliary(0) != all);
  CHECK(at_layer(a.extra, 3).valid.data() == mask.data());
  CHECK(without_auxiliary(a.extra).valid.data() == mask.data());
  CHECK_FALSE(at_layer(without_auxiliary(a.extra), 1).count_auxiliary);
}

TEST_CASE("ComposedGate: padding gets no expert, also after a mixing") {
  Alone a(ComposedGate<LinearScores, TokenSimilarity, TopK>{.scores = {.model_dim = 5, .experts = 4},
                                                            .selection = {.k = 2}},
          6);
  const std::vector<double> mask{1, 0, 1, 1, 0, 1};
  a.extra.valid = mask;
  a.forward();
  for (Index p = 0; p < 12; ++p) CHECK((a.plan.expert(p) < 0) == (mask[static_cast<std::size_t>(p / 2)] == 0));
  CHECK(a.plan.offsets(4) == 8);
}

TEST_CASE("ComposedGate: NaN in padding changes no item (transformers #45621)") {
  Cpu::Context ctx(1);
  const Mixture layer{balanced(), Mlp<Silu>{.model_dim = 5, .hidden_dim = 3}};
  auto padded = pass<double>(ctx, layer, 6);
  const std::vector<double> mask{1, 0, 1, 1, 0, 1};
  padded.extra.valid = mask;
  for (const Index n : {1, 4})
    for (Index d = 0; d < 5; ++d) padded.x(n, d) = quiet_nan;
  padded.forward();
  padded.backward();
  // Runs the four items without padding. Sums over items in gradients may differ by rounding, but the outputs must have
  // the same bits.
  auto alone = pass<double>(ctx, layer, 4);
  const Index kept[] = {0, 2, 3, 5};
  for (Index n = 0; n < 4; ++n)
    for (Index d = 0; d < 5; ++d) {
      alone.x(n, d) = padded.x(kept[n], d);
      alone.dy(n, d) = padded.dy(kept[n], d);
    }
  alone.forward();
  alone.backward();
  for (Index n = 0; n < 4; ++n)
    for (Index d = 0; d < 5; ++d) CHECK(padded.y(kept[n], d) == alone.y(n, d));
  for (const Index n : {1, 4})
    for (Index d = 0; d < 5; ++d) {
      CHECK(padded.y(n, d) == 0);
      CHECK(padded.dx(n, d) == 0);
    }
  CHECK(difference(values(padded.grads), values(alone.grads)) < 1e-13);
}

namespace {

/// Checks that infer of a gate builds the plan of forward bit by bit, with 1 and 3 threads, and reuses its memory.
template <class Gate>
void check_infer(const Gate& gate, const Extra<Gate, float, Cpu>& extra, Index items) {
  std::vector<float> first;
  for (const int threads : {1, 3}) {
    Cpu::Context ctx(threads, true);
    const auto params = init_params<float, Cpu>(gate, ctx, Seed{1});
    const auto x = uniform_tensor<float>(ctx, Seed{2}, 1, items, gate.scores.model_dim);
    SparsePlan<float, Cpu> plan, inferred;
    Saved<Gate, float, Cpu> saved;
    gate.forward(ctx, params, x, plan, saved, extra);
    gate.infer(ctx, params, x, inferred, extra);
    CHECK(values(plan.item) == values(inferred.item));
    CHECK(values(plan.expert) == values(inferred.expert));
    CHECK(values(plan.weight) == values(inferred.weight));
    CHECK(values(plan.offsets) == values(inferred.offsets));
    CHECK(values(plan.pick) == values(inferred.pick));
    CHECK(values(plan.item_slots) == values(inferred.item_slots));
    const auto bytes = ctx.capacity();
    const float* const weights = inferred.weight.data();
    gate.infer(ctx, params, x, inferred, extra);  // reuses its memory
    CHECK(ctx.capacity() == bytes);
    CHECK(inferred.weight.data() == weights);
    const std::vector<float> now(plan.weight.data(), plan.weight.data() + plan.weight.size());
    if (threads == 1) first = now;
    CHECK(now == first);
  }
}

}  // namespace

TEST_CASE("ComposedGate: infer builds the plan of forward") {
  const std::vector<float> mask{1, 0, 1, 1, 0, 1, 1, 1, 1, 1, 0};
  for (const Index experts : {1, 4, 19, 64})
    for (const bool padded : {false, true}) {
      CAPTURE(experts);
      CAPTURE(padded);
      const LinearScores scores{.model_dim = 5, .experts = experts};
      const Index k = std::min<Index>(experts, 3);
      const auto with = [&](const auto& gate, auto extra) {
        if (padded) extra.valid = mask;
        check_infer(gate, extra, 11);
      };
      with(SoftmaxTopK{.scores = scores, .selection = {.k = k}}, Extra<SoftmaxTopK, float, Cpu>{});
      with(SoftmaxTopK{.scores = scores, .selection = {.k = k, .renormalise = false}},
           Extra<SoftmaxTopK, float, Cpu>{});
      using Losses = WithAuxiliary<SoftmaxTopK, Balance>;
      with(Losses{.scores = scores, .selection = {.k = k}}, Extra<Losses, float, Cpu>{});
      using Limited = ComposedGate<LinearScores, Independent, Capacity<TopK>>;
      with(Limited{.scores = scores, .selection = {.selection = {.k = k}, .factor = 0.6, .multiple_of = 1}},
           Extra<Limited, float, Cpu>{});
      using Similar = ComposedGate<LinearScores, TokenSimilarity, TopK>;
      with(Similar{.scores = scores, .selection = {.k = k}}, Extra<Similar, float, Cpu>{});
      using Noisy = ComposedGate<LinearScores, Independent, NoisyTop1<>>;
      for (const bool noisy_weight : {false, true})
        with(Noisy{.scores = scores, .selection = {.noisy_weight = noisy_weight}},
             Extra<Noisy, float, Cpu>{.selection = {Random{Seed{7}, 3}}});
    }
}

TEST_CASE("ComposedGate: one pass over rows equals mixing, then selection") {
  Cpu::Context ctx(2);
  for (const Index experts : {1, 8, 16, 21, 64}) {
    const Index k = std::min<Index>(experts, 2);
    const SoftmaxTopK gate{.scores = {.model_dim = 6, .experts = experts}, .selection = {.k = k}};
    const auto params = init_params<float, Cpu>(gate, ctx, Seed{3});
    const auto x = uniform_tensor<float>(ctx, Seed{4}, 1, 40, 6);
    SparsePlan<float, Cpu> plan, alone;
    Saved<SoftmaxTopK, float, Cpu> saved;
    gate.forward(ctx, params, x, plan, saved, {});
    Nothing<float, Cpu> none;
    Tensor<float, 2, Cpu> q(40, experts);
    gate.mixing.forward(ctx, none, x, saved.logits, q, none, none);
    CHECK(values(q) == values(saved.probabilities));
    gate.selection.forward(ctx, none, Candidates<float, Cpu>{x, saved.logits, q}, alone, none, none);
    CHECK(values(plan.expert) == values(alone.expert));
    CHECK(values(plan.weight) == values(alone.weight));
  }
}

TEST_CASE("ComposedGate: skipping the items' adjoint changes no other gradient") {
  const auto same = [](auto alone) {
    static_assert(detail_::hook::any::items_adjoint_is_optional<decltype(alone.gate)>());
    alone.extra.selection = {};
    alone.forward();
    auto grads = zeros_like(alone.ctx, alone.params);
    auto mark = alone.ctx.mark();
    auto dplan = alone.plan.grad(alone.ctx);
    for (Index i = 0; i < dplan.weight.size(); ++i) dplan.weight.data()[i] = 0.25 * static_cast<double>(i) - 1;
    ExtraGrad<decltype(alone.gate), double, Cpu> unused{};
    alone.gate.backward(alone.ctx, alone.params, alone.x, alone.plan, alone.saved, dplan, alone.dx, alone.grads,
                        alone.extra, unused);
    alone.gate.backward(alone.ctx, alone.params, alone.x, alone.plan, alone.saved, dplan, {}, grads, alone.extra,
                        unused);
    CHECK(same_bits(values(alone.grads), values(grads)));
    CHECK(std::ranges::any_of(values(grads), [](double v) { return v != 0; }));
  };
  same(Alone(SoftmaxTopK{.scores = {.model_dim = 5, .experts = 4}, .selection = {.k = 2, .renormalise = false}}, 9));
  same(Alone(ComposedGate<LinearScores, Independent, NoisyTop1<>>{.scores = {.model_dim = 5, .experts = 4}}, 9));
  same(Alone(
      ComposedGate<PatchScores, Independent, TopK>{
          .scores = {.model_dim = 5, .experts = 4, .initial = Initial::normal(1)},
          .selection = {.k = 1, .renormalise = false}},
      9));
  static_assert(!detail_::hook::any::items_adjoint_is_optional<ComposedGate<LinearScores, TokenSimilarity, TopK>>());
}

TEST_CASE("ComposedGate: wrong options and shapes throw") {
  Alone a(balanced(), 4);
  const auto validate = [&](Index items) { return message_of([&] { a.gate.validate(a.params, items, a.extra); }); };
  CHECK(validate(4) == "no ArgumentError");
  const std::vector<double> mask{1, 0, 1, 1};
  a.extra.valid = mask;
  CHECK(validate(4) == "no ArgumentError");
  CHECK(validate(5) == "Gate.forward: extra.valid: expected [5], got [4]");
  a.gate.selection.k = 5;
  CHECK(validate(4) == "TopK: k: expected 1 <= k <= experts = 4, got 5");
  a.gate.selection.k = 2;
  a.params.scores.weight.resize(5, 3);
  CHECK(validate(4) == "LinearScores: params.weight: expected [5, 4], got [5, 3]");
}

TEST_CASE("ComposedGate: gets its model dimension from the experts") {
  const SoftmaxTopK gate{.scores = {.experts = 6}, .selection = {.k = 3, .renormalise = false}};
  CHECK(count_experts(gate) == 6);
  const auto filled = with_model_dim(gate, 10);
  CHECK(filled.scores.model_dim == 10);
  CHECK(filled.selection.k == 3);
  CHECK_FALSE(filled.selection.renormalise);
}

TEST_CASE("ComposedGate: gradients and conformance with every selection and loss") {
  const auto with = [](auto gate) {
    const auto report = check::conformance<Cpu, double>(Mixture{gate, Mlp<Silu>{.model_dim = 5, .hidden_dim = 3}});
    CHECK_MESSAGE(report, report.str());
  };
  with(balanced());
  with(WithAuxiliary<SoftmaxDense, ZLoss, Balance>{
      .scores = {.experts = 3}, .auxiliary = {ZLoss{.weight = 0.5}, Balance{.weight = 0.5, .per_pick = true}}});
}

TEST_CASE("ComposedGate: mixing and selection get the sizes of the scores") {
  Cpu::Context ctx(1);
  using Gate = ComposedGate<LinearScores, TokenSimilarity, NoisyTopK<>>;
  const Gate gate{.scores = {.model_dim = 2, .experts = 3, .length = 2}, .mixing = {.learned_metric = true}};
  const auto params = init_params<double, Cpu>(gate, ctx, Seed{1});
  CHECK(params.mixing.metric.extent(0) == 4);  // each item has 2 positions
  const auto x = uniform_tensor<double>(ctx, Seed{2}, 1, 5, 4);
  SparsePlan<double, Cpu> plan;
  Saved<Gate, double, Cpu> saved;
  gate.forward(ctx, params, x, plan, saved, {});
  CHECK(plan.items() == 5);
  // The gate checks the mask, too.
  const std::vector<double> mask{1, 0};
  Extra<Gate, double, Cpu> extra;
  extra.valid = mask;
  CHECK(message_of([&] { gate.forward(ctx, params, x, plan, saved, extra); }) ==
        "Gate.forward: extra.valid: expected [5], got [2]");
}

TEST_CASE("ComposedGate: fusing the pass with the scores keeps the plan") {
  static_assert(detail_::policy::RowAnywhere<Independent, TopK, double, Cpu>);
  static_assert(detail_::policy::RowByRow<Independent, NumberedTopK, double, Cpu>);
  static_assert(!detail_::policy::RowAnywhere<Independent, NumberedTopK, double, Cpu>);
  static_assert(detail_::hook::scores::forward_rows<LinearScores, double, Cpu>() &&
                !detail_::hook::scores::forward_rows<Fixed<LinearScores>, double, Cpu>());
  for (const Index items : {0, 1, 40}) {
    Alone<SoftmaxTopK> together({.scores = {.model_dim = 5, .experts = 7}}, items);
    Alone<ComposedGate<LinearScores, Independent, NumberedTopK>> numbered({.scores = {.model_dim = 5, .experts = 7}},
                                                                          items);
    Alone<ComposedGate<Fixed<LinearScores>, Independent, TopK>> frozen(
        {.scores = {.scores = {.model_dim = 5, .experts = 7}}}, items, 5);
    copy_pack(together.ctx, together.params.scores, frozen.params.scores.scores);
    const auto same = [&](auto& other) {
      for (const bool inferred : {false, true}) {
        const auto route = [&](auto& a) {
          if (inferred)
            a.gate.infer(a.ctx, a.params, together.x, a.plan, a.extra);
          else
            a.gate.forward(a.ctx, a.params, together.x, a.plan, a.saved, a.extra);
        };
        route(together);
        route(other);
        CHECK(values(other.plan.expert) == values(together.plan.expert));
        CHECK(values(other.plan.weight) == values(together.plan.weight));
        CHECK(values(other.plan.item_slots) == values(together.plan.item_slots));
      }
      CHECK(values(other.saved.logits) == values(together.saved.logits));
      CHECK(values(other.saved.probabilities) == values(together.saved.probabilities));
    };
    same(numbered);
    same(frozen);
  }
}

TEST_CASE("ComposedGate: a mixing's rank must have shape [N, E]") {
  Alone a(ComposedGate{LinearScores{.model_dim = 5, .experts = 4}, RanksOneFewer{}, TopK{.k = 2}}, 9);
  CHECK(message_of([&] { a.forward(); }) == "Gate: rank(z, saved) of the mixing: expected [9, 4], got [8, 4]");
}
