#pragma once

#include <doctest/doctest.h>

#include <string>
#include <tuple>
#include <vector>

#include "gatefold/gatefold.hpp"
#include "gatefold/check/gradient.hpp"

/// A covering set of compositions: any two policies of different families meet in at least one gradient check. The lists
/// below name the policies; tests/structure/pairwise.sh checks that the files of this folder cover all pairs.
namespace gatefold::pairwise {

// An item has 4 values: one token of 4, or 2 tokens (patches) of 2.

// [scores]
using OneMap = LinearScores;
using Cosine = CosineScores;
using FrozenLinear = FrozenScores;
using Patch = PatchScores;
using Jittered = Jitter<LinearScores>;
// [mixing]
using Alone = Independent;
using Similar = TokenSimilarity;
using Attending = AttentionPosterior;
// [selection]
using Best = TopK;
using All = Dense;
using NoisyBest = NoisyTop1<>;
using NoisyBestK = NoisyTopK;
using Limited = Capacity<TopK>;
using Choosing = ExpertChoice;
using Balanced = SigmoidBias;
using Scheduled = ScheduledTopK;
// [rule]
using Plain = update::Plain;
using HeavyBall = update::HeavyBall;
using Adam = update::Adam;
using RmsProp = update::RmsProp;
using AdamThenHeavyBall = update::First<update::Adam, update::HeavyBall>;
using Robust = update::Robust;
using Nesterov = update::Nesterov;
using TimeVarying = update::TimeVarying;
using ScheduledRestart = update::ScheduledRestart;
using SharpnessAware = update::SharpnessAware;
using ComplexMomentum = update::ComplexMomentum;
using ZeroOrderHold = update::ZeroOrderHold;
using LearnedHeavyBall = update::LearnedHeavyBall;
// [expert]
using LinearMap = Linear;
using TwoLayers = Mlp<Gelu>;
using Gated = GatedMlp<Silu>;
using Patches = PatchMlp<Cubic>;
using Convolved = PatchCnn<Cubic>;
using Attended = AttentionExpert;
using Transformed = TransformerExpert<Gelu>;
using Mixed = Experts<Mlp<Gelu>, Linear>;
struct BesideShared {};  // a shared expert beside the routed ones
// [end]

inline constexpr Index experts = 3, items = 8, length = 4;

template <class P>
P make() {
  return {};
}
template <> inline Jittered make() { return {.epsilon = 0.2}; }
template <> inline Cosine make() { return {.dim = 3, .temperature = 0.5}; }
template <> inline Patch make() { return {.length = 2, .initial = Initial::normal(1)}; }
template <> inline Similar make() { return {.tau = 0.7}; }
template <> inline Attending make() { return {.sigma = 1.3}; }
template <> inline NoisyBest make() { return {.scale = 3}; }
template <> inline NoisyBestK make() { return {.k = 2, .initial = Initial::normal(0.3)}; }
template <> inline Limited make() { return {.selection = {.k = 2}, .factor = 0.7, .multiple_of = 1}; }
template <> inline Choosing make() { return {.factor = 1.5}; }
// Its root would be nearly flat at 1e-8.
template <> inline Adam make() { return {.kappa = 0.2, .epsilon = 0.3}; }
template <> inline RmsProp make() { return {.epsilon = 0.3}; }
template <> inline AdamThenHeavyBall make() { return {.first = make<Adam>(), .rest = {}}; }
template <> inline SharpnessAware make() { return {.rho = 0.2}; }
template <> inline LinearMap make() { return {.model_dim = 4}; }
template <> inline TwoLayers make() { return {.model_dim = 4, .hidden_dim = 3}; }
template <> inline Gated make() { return {.model_dim = 4, .hidden_dim = 3}; }
template <> inline Patches make() { return {.model_dim = 2, .patches = 2, .filters = 4, .outputs = 4, .initial = Initial::normal(0.7)}; }
template <> inline Convolved make() { return {.model_dim = 2, .patches = 2, .filters = 4, .outputs = 4, .initial = Initial::normal(0.7)}; }
template <> inline Attended make() { return {.model_dim = 2, .length = 2, .outputs = 4, .initial = Initial::normal(1)}; }
template <> inline Transformed make() { return {.model_dim = 2, .hidden_dim = 3, .length = 2}; }
template <> inline Mixed make() { return {.kinds = {make<TwoLayers>(), make<LinearMap>()}, .counts = {2, 1}}; }

template <class E, class G>
auto branch(const G& gate) {
  if constexpr (std::is_same_v<E, BesideShared>) {
    return WithShared{Mixture{gate, make<TwoLayers>()}, make<Gated>()};
  } else {
    return Mixture{gate, make<E>()};
  }
}

/// What an attention would hand over: fixed numbers, since the adjoint of the trace has its own test.
struct Trace {
  Cpu::Context ctx{1};
  Tensor<double, 2, Cpu> q = uniform_tensor<double>(ctx, Seed{31}, 1, items, 4), k = uniform_tensor<double>(ctx, Seed{32}, 1, items, 4),
                         v = uniform_tensor<double>(ctx, Seed{33}, 1, items, 4),
                         log_sum_exp = uniform_tensor<double>(ctx, Seed{34}, 1, items, 2),
                         output = uniform_tensor<double>(ctx, Seed{35}, 1, 4, 4);
  AttentionTrace<const double, Cpu> view() const { return {q, k, v, log_sum_exp, output, length, 0.7, true}; }
};
template <class E>
E extra(const Trace& trace) {
  if constexpr (requires(E e) { e.mixing.trace; }) {
    E e{{}, {trace.view(), {}}, {}};
    if constexpr (requires { e.selection.random; }) e.selection.random = Random{Seed{5}, 3};
    if constexpr (requires { e.scores.random; }) e.scores.random = Random{Seed{5}, 4};
    return e;
  } else {
    E e{};
    if constexpr (requires { e.mixing.length; }) e.mixing.length = length;
    if constexpr (requires { e.selection.length; }) e.selection.length = length;
    if constexpr (requires { e.selection.random; }) e.selection.random = Random{Seed{5}, 3};
    if constexpr (requires { e.scores.random; }) e.scores.random = Random{Seed{5}, 4};
    return e;
  }
}

/// Gradients that are 0 by design: μ_1 = 0, so that the first layer forgets what was carried to it.
template <class RuleT>
std::vector<std::string> zero() {
  return {};
}
template <> inline std::vector<std::string> zero<TimeVarying>() { return {"carry.p"}; }
template <> inline std::vector<std::string> zero<ScheduledRestart>() { return {"carry.p"}; }

/// Gradients of a layer of these five, of its input, parameters and carry.
template <class ScoresT, class MixingT, class SelectionT, class RuleT, class ExpertT>
void check(const char* name) {
  using Gate = ComposedGate<ScoresT, MixingT, SelectionT>;
  const Gate gate = with_experts(Gate{make<ScoresT>(), make<MixingT>(), make<SelectionT>()}, experts);
  const Residual layer{make<RuleT>(), branch<ExpertT>(gate)};
  using Layer = std::remove_const_t<decltype(layer)>;
  Cpu::Context ctx(1);
  const Trace trace;
  // The point is one where no choice is near its border; few values are skipped all the same.
  const auto report = check::gradients(ctx, layer, {.items = items, .most_skipped = 0.1, .zero = zero<RuleT>()},
                                       extra<Extra<Layer, double, Cpu>>(trace));
  CHECK_MESSAGE(report, std::string(name) << ": " << report.str());
}

}  // namespace gatefold::pairwise

#define GATEFOLD_PAIRWISE(...) \
  TEST_CASE("pairwise: gradients of " #__VA_ARGS__) { gatefold::pairwise::check<__VA_ARGS__>(#__VA_ARGS__); }
