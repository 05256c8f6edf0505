#pragma once

#include <cmath>
#include <cstdint>
#include <optional>
#include <type_traits>
#include <utility>

#include "gatefold/backend/math.hpp"
#include "gatefold/diagnosis/parts.hpp"
#include "gatefold/gate/composed_gate.hpp"
#include "gatefold/layer/composition.hpp"
#include "gatefold/layer/mixture.hpp"
#include "gatefold/policy/options.hpp"

namespace gatefold {

GATEFOLD_FUNCTORS((class T, class B), Affinities, CombineWinners, WinnerWeightsBackward, AffinitiesBackward, RouterLoss,
                  RouterLossBackward);

/// The function by which a Competition measures the response of an expert with output z [D]: the mean of softplus(z),
/// or the Euclidean norm of z.
enum class Affinity { softplus, norm };

template <class E>
struct CompetitionExtra;

/// Trains the router of a mixture by competition (CompeteSMoE): `Competition{Mixture{gate, expert}}`. In some training
/// steps, chosen at random, all experts compute every item, and the experts with the strongest responses win. The
/// router learns to predict the winners. In all other steps, and in inference, the branch is the mixture.
///
///     s[n,e] = (1/D) Σ_d log(1 + exp z[n,e,d])  or  ‖z[n,e,:]‖,   z[n,e,:] = expert_e(x[n])              (1)
///     p[n,:] = softmax(s[n,:]),   I(n) = top_K s[n,:]                                                   (2)
///     u[n] = Σ_{e ∈ I(n)} w[n,e] z[n,e,:],   w[n,:] = softmax of s[n,:] over I(n)                        (3)
///     router loss = weight · (1/(N·E)) Σ_n Σ_e (q[n,e] − p[n,e])²,   q from the router                  (4)
///     a step competes if r < probability,   r ~ U[0, 1), separate for each layer                        (5)
///
/// K is the number of experts that the gate picks, and q are the probabilities of the gate. The responses s get the
/// gradient of (3). With `detached`, (4) trains only the router, and p is a constant in its gradient. (4) is stored as
/// the auxiliary loss of the gate; in a step that competes, it takes the place of the gate's own auxiliary losses.
///
/// Source: CompeteSMoE, Pham et al. 2024, arXiv:2402.02526 (code: giangdip2410/CompeteSMoE), and its improved version,
/// Nguyen et al. 2025, arXiv:2505.13380 (code: Fsoft-AIC/CompeteSMoE). The two codes differ:
/// - s is the norm in the first code and the mean of softplus in the second. The option `affinity` chooses.
/// - w is (3) in the first code. In the second, w = s / Σ s over the winners, which is not available here.
/// - p in (4) is 0 for losers in the first code, and (2) in the second, which also detaches p, as here by default.
/// - The second code adds losses for diversity and balance in steps that compete. They are not available here.
/// @param mixture      the gate, a ComposedGate, and the experts; parameters have the names of the mixture's parameters
/// @param probability  the probability of (5); `extra.probability` replaces it in one call, for example by a schedule
/// @param weight       factor of the router loss
/// @param x [N, in_dim] in, u [N, out_dim] out
/// @param extra  `.noise`: random numbers, different for each layer of a stack; without them, no call competes.
///         `.branch`: the extra inputs of the mixture. `.probability`: empty, or the probability for this call
/// @throws ArgumentError if probability is not in [0, 1], weight is not finite, or a shape or an option of the mixture
///         is invalid; also in a step of a Trainer without noise if the probability is not 0
/// @cost   the mixture. A step that competes costs the router, the experts on N·E slots, and N·E·out_dim softplus or
///         squares for s. In this step, forward also keeps the outputs z of all experts
/// @order  ties go to the lower expert index; the outputs of the winners are summed from the best to the worst
template <class GateT, class ExpertT>
struct Competition {
  static_assert(detail_::policy::in_order<Competition>);
  Mixture<GateT, ExpertT> mixture;
  double probability = 0.5, weight = 1;
  Affinity affinity = Affinity::softplus;
  bool detached = true;

  template <class T, class B>
  using OfMixture = gatefold::Extra<Mixture<GateT, ExpertT>, T, B>;
  template <class T, class B>
  using Extra = CompetitionExtra<OfMixture<T, B>>;
  template <class T, class B>
  using ExtraGrad = gatefold::ExtraGrad<GateT, T, B>;
  template <class T, class B>
  struct Params {
    using OfCompetition = void;
    gatefold::Params<Mixture<GateT, ExpertT>, T, B> mixture;
    static void each(auto&& f, auto&... p) { f("", p.mixture...); }
  };
  template <class T, class B>
  struct Saved {
    // The saved values of the mixture. After a competition, `mixture.plan` has the winners with their weights,
    // `mixture.gate` the values of the router, and `mixture.expert` the values of the experts on the slots of `all`.
    gatefold::Saved<Mixture<GateT, ExpertT>, T, B> mixture;
    SparsePlan<T, B> all;                   // every expert for every item; its weights are not used
    Tensor<T, 2, B> z, affinity, response;  // [slots, out_dim] outputs; [N, E] s; [N, E] p
    bool competed = false;
    void mixtures(auto&& f) const { f(mixture); }
  };

  Index in_dim() const { return mixture.in_dim(); }
  Index out_dim() const { return mixture.out_dim(); }
  Index experts() const { return mixture.experts(); }

  GATEFOLD_INIT_OF(Competition, mixture)
  template <class T, class B>
  void validate(const Params<T, B>& p, Index items, const NonDeduced<Extra<T, B>>& extra) const {
    expect_options();
    expect_share("extra.probability", probability_of(extra));
    expect(probability_of(extra) == 0 || extra.noise.random || !extra.noise.training, "Competition", "extra.noise",
           "random numbers in a training step (for example trainer.noise()), or probability 0", "none");
    mixture.validate(p.mixture, items, extra.branch);
  }

  GATEFOLD_BRANCH_PASSES(Competition)

 private:
  GATEFOLD_RUN_BRANCH {
    if (!competes(extra)) {
      if constexpr (!std::is_null_pointer_v<Keep>) keep->competed = false;
      return run_branch<T, B>(mixture, ctx, p.mixture, x, u, part_of(keep, &Saved<T, B>::mixture), extra.branch, step);
    }
    auto mark = ctx.mark();
    if constexpr (std::is_null_pointer_v<Keep>) {
      auto discarded = ctx.template acquire<Saved<T, B>>();
      compete<T, B, false>(ctx, p.mixture, x, u, *discarded, extra.branch);
    } else {
      keep->competed = true;
      keep->mixture.batch.take(x);
      compete<T, B, true>(ctx, p.mixture, x, u, *keep, extra.branch);
    }
    run_step(ctx, u, step);
  }
  GATEFOLD_RUN_BRANCH_BACKWARD {
    constexpr const char* where = "Competition.backward";
    expect(saved.competed == competes(extra), where, "extra", "the noise and the probability of forward",
           saved.competed ? "values with which no experts compete" : "values with which experts compete");
    if (!saved.competed)
      return run_branch_backward<T, B>(mixture, ctx, p.mixture, x, saved.mixture, du, dx, grads.mixture, extra.branch,
                                       dextra);
    saved.mixture.batch.expect_same(where, x);
    const GateT g = mixture.filled_gate();
    const auto& of_gate = mixture.of_gate(extra.branch);
    const Index items = x.extent(0), count = count_experts(g), k = active_experts(g, count);
    const auto& winners = saved.mixture.plan;
    const auto& q = saved.mixture.gate.probabilities;
    expect_picks(where, winners, items, k);
    expect_shape(where, "saved.z", saved.z, {items * count, out_dim()});
    expect_shape(where, "saved.response", saved.response, {items, count});
    auto mark = ctx.mark();
    const auto dweight = ctx.template scratch<T>(items * k);
    const auto dresponse = ctx.template scratch<T>(items, count), ds = ctx.template scratch<T>(items, count),
               dq = ctx.template scratch<T>(items, count);
    fill(ctx, dresponse, 0);
    B::for_rows(ctx, items * k,
                functor::WinnerWeightsBackward<T, B>{
                    {saved.all.item_offsets, saved.all.item_slots, winners.expert, winners.weight, saved.z, {}, k},
                    du,
                    dweight});
    B::for_rows(ctx, items,
                functor::PickTopKBackward<T, B>{saved.response, winners.expert, dweight, k, true, dresponse});
    if (of_gate.count_auxiliary)
      B::for_each(ctx, items * count,
                  functor::RouterLossBackward<T, B>{loss(ctx, q.view(), saved.response.view(), of_gate.valid), dq,
                                                    detached ? View<T, 2, B>{} : dresponse});
    B::for_rows(ctx, items, functor::SoftmaxBackward<T, B>{saved.response, dresponse, ds});
    {
      auto inner = ctx.mark();
      const auto in = saved.all.dispatched(x);
      const auto dz = ctx.template scratch<T>(items * count, out_dim()),
                 dslots = ctx.template scratch<T>(items * count, in_dim());
      B::for_rows(ctx, items * count,
                  functor::AffinitiesBackward<T, B>{affinity, in.groups, saved.all.pick, winners.expert, winners.weight,
                                                    k, saved.z, saved.affinity, ds, du, dz});
      mixture.drawing_experts(extra.branch)
          .backward(ctx, p.mixture.expert, in.groups, in.x, saved.mixture.expert, dz, dslots, grads.mixture.expert);
      auto unused = typename SparsePlan<T, B>::Grad{};
      saved.all.dispatch_backward(ctx, x, dslots, dx, unused);
    }
    if (of_gate.count_auxiliary)
      g.backward_probabilities(ctx, p.mixture.gate, x, saved.mixture.gate, dq, dx, grads.mixture.gate, of_gate, dextra);
  }

  /// Runs all experts and combines the outputs of the winners.
  /// @tparam training  if true, keeps the values for backward and writes the router loss (4)
  template <class T, class B, bool training>
  void compete(typename B::Context& ctx, const gatefold::Params<Mixture<GateT, ExpertT>, T, B>& p, In<T, 2, B> x,
               Out<T, 2, B> u, Saved<T, B>& saved, const OfMixture<T, B>& extra) const {
    const GateT g = mixture.filled_gate();
    const auto& of_gate = mixture.of_gate(extra);
    const Index items = x.extent(0), count = count_experts(g), k = active_experts(g, count);
    auto& plan = saved.mixture.plan;
    auto& gate = saved.mixture.gate;
    g.forward(ctx, p.gate, x, plan, gate, of_gate.without_auxiliary());
    auto& all = saved.all;
    all.resize(items, count, items * count);
    B::for_each(ctx, items * count, functor::PickAll<T, B>{gate.probabilities, all.item, all.expert, all.weight});
    build(ctx, all, of_gate.valid);
    const auto in = all.dispatch(ctx, x);
    saved.z.resize(in.groups.slots, out_dim());
    if constexpr (training) {
      mixture.drawing_experts(extra).forward(ctx, p.expert, in.groups, in.x, saved.z, saved.mixture.expert);
    } else {
      infer_expert<T, B>(mixture.drawing_experts(extra), ctx, p.expert, in.groups, in.x, saved.z);
    }
    saved.affinity.resize(items, count);
    saved.response.resize(items, count);
    fill(ctx, saved.affinity, 0);  // padding has no slots
    B::for_rows(ctx, in.groups.slots,
                functor::Affinities<T, B>{affinity, in.groups, all.pick, saved.z, saved.affinity});
    B::for_rows(ctx, items, functor::Softmax<T, B>{saved.affinity, saved.response});
    plan.resize(items, count, items * k);
    B::for_rows(ctx, items,
                functor::PickTopK<T, B>{saved.affinity, saved.response, k, true, plan.item, plan.expert, plan.weight});
    build(ctx, plan, of_gate.valid);
    B::for_rows(
        ctx, items,
        functor::CombineWinners<T, B>{all.item_offsets, all.item_slots, plan.expert, plan.weight, saved.z, u, k});
    if constexpr (training) {
      gate.auxiliary.resize(of_gate.count_auxiliary ? 1 : 0);
      if (!of_gate.count_auxiliary) return;
      auto mark = ctx.mark();
      fill(ctx, gate.auxiliary, 0);
      B::template reduce<T>(
          ctx, items * count,
          loss(ctx, std::as_const(gate.probabilities).view(), std::as_const(saved.response).view(), of_gate.valid),
          gate.auxiliary.data());
    }
  }
  /// Builds a plan without the picks of padding.
  template <class T, class B>
  static void build(typename B::Context& ctx, SparsePlan<T, B>& plan, View<const T, 1, B> valid) {
    if (valid.data()) B::for_each(ctx, plan.item.size(), functor::DropPadding<T, B>{valid, plan.item, plan.expert});
    plan.build(ctx);
  }
  /// Returns a functor that computes the terms of (4). It reads scratch memory, which is valid until the caller's
  /// `ctx.mark()` goes out of scope.
  template <class T, class B>
  functor::RouterLoss<T, B> loss(typename B::Context& ctx, View<const T, 2, B> q, View<const T, 2, B> p,
                                 View<const T, 1, B> valid) const {
    const auto items = ctx.template scratch<T>(1);
    fill(ctx, items, 0);
    B::template reduce<T>(ctx, q.extent(0), functor::Valid<T, B>{valid}, items.data());
    return {q, p, {valid}, items, T(weight)};
  }
  double probability_of(const auto& extra) const { return extra.probability.value_or(probability); }
  bool competes(const auto& extra) const {
    if (!extra.noise.random) return false;
    const Random& random = *extra.noise.random;
    return uniform<double>(random.seed.fork(stream), random.step, 0) < probability_of(extra);
  }
  void expect_share(const char* name, double value) const {
    expect(0 <= value && value <= 1, "Competition", name, "0 <= probability <= 1", value);
  }
  void expect_options() const {
    expect_share("probability", probability);
    expect_finite("Competition", "weight", weight);
  }
  static constexpr std::uint64_t stream = 0x636f6d70;  // fork of the seed for (5); experts and gate do not use it
};
template <class G, class E>
Competition(Mixture<G, E>) -> Competition<G, E>;
template <class G, class E>
Competition(Mixture<G, E>, double) -> Competition<G, E>;
template <class G, class E>
Competition(Mixture<G, E>, double, double) -> Competition<G, E>;
template <class G, class E>
Competition(Mixture<G, E>, double, double, Affinity) -> Competition<G, E>;
template <class G, class E>
Competition(Mixture<G, E>, double, double, Affinity, bool) -> Competition<G, E>;

/// The extra inputs of a Competition around a Mixture with extra inputs of type E.
template <class E>
struct CompetitionExtra {
  Noise noise{};  // decides whether the call competes; empty: it does not
  E branch{};
  std::optional<double> probability{};  // of this call; empty: the option `probability`

  using WithoutTrace = CompetitionExtra<gatefold::WithoutTrace<E>>;
  template <class Trace>
  static CompetitionExtra with_trace(const WithoutTrace& rest, const Trace& trace) {
    return {rest.noise, gatefold::with_trace<E>(rest.branch, trace), rest.probability};
  }
};

namespace functor {

/// Writes the responses s, (1) of Competition: affinity[n,e] for item n and expert e, pick n·E + e of the plan.
template <class T, class B>
struct Affinities {
  Affinity kind;
  Groups<B> groups;
  View<const Index, 1, B> pick;
  View<const T, 2, B> z;
  View<T, 2, B> affinity;

  GATEFOLD_HD void operator()(const auto& lanes, Index s) const {
    if (s >= from_first(lanes, [&] { return groups.offsets(groups.experts()); })) return;
    const Index columns = z.extent(1);
    const T* const row = z.data() + s * columns;
    const bool norm = kind == Affinity::norm;
    const T sum = sum_elements<T>(
        lanes, columns, [&](const auto&, Index d) { return norm ? row[d] * row[d] : math::softplus(row[d]); });
    if (lanes.lane == 0) affinity.data()[pick(s)] = norm ? std::sqrt(sum) : sum / static_cast<T>(columns);
  }
};
/// Computes the output (3) of Competition for item n, or 0 for padding.
template <class T, class B>
struct CombineWinners {
  View<const Index, 1, B> item_offsets, item_slots;  // of the plan of all experts
  View<const Index, 1, B> expert;                    // [N·K] the winners of each item
  View<const T, 1, B> weight;
  View<const T, 2, B> z;
  View<T, 2, B> u;
  Index k;

  /// Returns the output of winner j of item n, with p = n·K + j. Item n must not be padding. It then has one slot for
  /// each expert, in the order of the experts.
  GATEFOLD_HD const T* output(Index p) const {
    return z.data() + item_slots(item_offsets(p / k) + expert(p)) * z.extent(1);
  }
  GATEFOLD_HD bool is_padding(Index n) const { return item_offsets(n) == item_offsets(n + 1); }
  GATEFOLD_HD void operator()(const auto& lanes, Index n) const {
    const Index columns = u.extent(1);
    T* const to = u.data() + n * columns;
    zero_columns(lanes, to, columns);
    if (from_first(lanes, [&] { return Index(is_padding(n)); })) return;
    for (Index p = n * k; p < (n + 1) * k; ++p) {
      const T w = weight(p);
      const T* const from = output(p);
      each_column<T>(lanes, columns,
                     [&](const auto& at, Index d) { at.store(to + d, at.load(to + d) + w * at.load(from + d)); });
    }
  }
};
/// Writes the gradient of the weight of winner p of an item: the inner product of du and the output of the winner.
template <class T, class B>
struct WinnerWeightsBackward {
  CombineWinners<T, B> of;
  View<const T, 2, B> du;
  View<T, 1, B> dweight;

  GATEFOLD_HD void operator()(const auto& lanes, Index p) const {
    const Index columns = du.extent(1), n = p / of.k;
    T dot = 0;
    if (!from_first(lanes, [&] { return Index(of.is_padding(n)); }))
      dot = inner_product<T>(lanes, columns, du.data() + n * columns, of.output(p));
    if (lanes.lane == 0) dweight(p) = dot;
  }
};
/// Writes the gradient of the output z of each slot: the sum of the gradient through (3), which is 0 for losers, and
/// the gradient through the response s, whose gradient is ds.
template <class T, class B>
struct AffinitiesBackward {
  Affinity kind;
  Groups<B> groups;
  View<const Index, 1, B> pick, expert;  // expert [N·K]: the winners of each item
  View<const T, 1, B> weight;
  Index k;
  View<const T, 2, B> z, affinity, ds, du;
  View<T, 2, B> dz;

  GATEFOLD_HD void operator()(const auto& lanes, Index s) const {
    if (s >= from_first(lanes, [&] { return groups.offsets(groups.experts()); })) return;
    const Index columns = z.extent(1), i = from_first(lanes, [&] { return pick(s); }), n = i / ds.extent(1),
                e = i % ds.extent(1);
    T w = 0;
    for (Index p = n * k; p < (n + 1) * k; ++p) w = expert(p) == e ? weight(p) : w;
    const T size = affinity(n, e), slope = ds(n, e);
    const bool norm = kind == Affinity::norm;
    const T scale = !norm ? slope / static_cast<T>(columns) : size > 0 ? slope / size : T(0);
    const T *const from = z.data() + s * columns, *const d = du.data() + n * columns;
    T* const to = dz.data() + s * columns;
    for (Index j = lanes.lane; j < columns; j += lanes.size)
      to[j] = w * d[j] + scale * (norm ? from[j] : math::sigmoid(from[j]));
  }
};
/// Computes the terms of the router loss (4) of Competition. Term n·E + e is weight / (N·E) · (q[n,e] − p[n,e])², or 0
/// for padding.
template <class T, class B>
struct RouterLoss {
  View<const T, 2, B> q, p;
  Valid<T, B> valid;
  View<const T, 1, B> items;  // [1] N, the number of items that are not padding
  T weight;

  /// Returns weight / (N·E), or 0 for padding.
  GATEFOLD_HD T factor(Index i) const {
    return valid(i / q.extent(1)) == 0 ? T(0) : weight / (items(0) * static_cast<T>(q.extent(1)));
  }
  GATEFOLD_HD T operator()(Index i) const {
    const T c = factor(i), d = q.data()[i] - p.data()[i];
    return c == 0 ? T(0) : c * d * d;
  }
};
/// Writes the gradient of q in the router loss (4) of Competition to dq. Adds the gradient of p to dp, unless dp is
/// empty.
template <class T, class B>
struct RouterLossBackward {
  RouterLoss<T, B> of;
  View<T, 2, B> dq, dp;
  GATEFOLD_HD void operator()(Index i) const {
    const T c = of.factor(i), d = c == 0 ? T(0) : 2 * c * (of.q.data()[i] - of.p.data()[i]);
    dq.data()[i] = d;
    if (dp.data()) dp.data()[i] -= d;
  }
};

}  // namespace functor

}  // namespace gatefold
