#pragma once

#include <concepts>
#include <type_traits>

#include "gatefold/backend/elementwise.hpp"
#include "gatefold/gate/composed_gate.hpp"
#include "gatefold/gate/hash_gate.hpp"
#include "gatefold/gate/hierarchical_gate.hpp"
#include "gatefold/gate/mixing/attention_posterior.hpp"
#include "gatefold/gate/mixing/token_similarity.hpp"
#include "gatefold/gate/selection/capacity.hpp"
#include "gatefold/gate/selection/dense.hpp"
#include "gatefold/gate/selection/expert_choice.hpp"
#include "gatefold/gate/selection/noisy_top_1.hpp"
#include "gatefold/gate/selection/scheduled_top_k.hpp"
#include "gatefold/gate/selection/sigmoid_bias.hpp"
#include "gatefold/gate/selection/top_k.hpp"
#include "gatefold/gate/weight_on_input.hpp"
#include "gatefold/routing/sparse_plan.hpp"

/// Finds out which values from other shards a gate (router) needs to route the items of its own shard. Also checks the
/// gates of mixtures outside of an ExpertParallel. Every shard holds all experts of such a mixture, and the gate on a
/// shard routes only the items of this shard. This is an error for gates that must compare all items of the batch.
namespace gatefold::dist {

struct GivenScores;
struct GivenRows;
struct MixedScores;
struct GivenMixing;

namespace global {

/// The values from other shards that the parts of a gate (scores, mixing, selection, auxiliary losses) need.
enum class Sees {
  own,     // No values, because items, or sequences of items (Soft MoE), are routed independently.
  logits,  // Selection and losses need logits. Each shard scores its items, and the logits are gathered.
  mixed,   // Selection and losses need mixed values. Each shard mixes its sequences, and the results are gathered.
  items    // All parts need the items. The items are gathered, and every shard routes all of them.
};

}  // namespace global

/// True for a HashGate, which routes each item independently of all other items. Each shard then routes only its own
/// items. For other gates with a SparsePlan, values of other shards are gathered (see Sees), even if the gate routes
/// each item independently. Specialise it for your own gate.
template <class GateT>
inline constexpr bool routes_alone = std::same_as<GateT, HashGate>;

/// True if a selection (the part of a gate that chooses experts) reads only logits and probabilities, not the items,
/// and has no parameters. Specialise it for your own selection.
template <class SelectionT>
inline constexpr bool reads_logits_alone = false;
template <>
inline constexpr bool reads_logits_alone<TopK> = true;
template <>
inline constexpr bool reads_logits_alone<Dense> = true;
template <>
inline constexpr bool reads_logits_alone<ExpertChoice> = true;
template <>
inline constexpr bool reads_logits_alone<ScheduledTopK> = true;
template <class LawT>
inline constexpr bool reads_logits_alone<NoisyTop1<LawT>> = true;
template <class SelectionT>
inline constexpr bool reads_logits_alone<Capacity<SelectionT>> = reads_logits_alone<SelectionT>;

/// True if a mixing (the part of a gate that lets items share probabilities) never mixes items of different sequences.
/// It can then be computed on the shards of the items. Specialise it for your own mixing.
template <class MixingT>
inline constexpr bool mixes_within_sequences =
    std::same_as<MixingT, TokenSimilarity> || std::same_as<MixingT, AttentionPosterior>;

namespace global {

template <class GateT>
struct Parts {
  static constexpr bool composed = false;
};
template <class S, class M, class Sel, class... A>
struct Parts<ComposedGate<S, M, Sel, A...>> {
  static constexpr bool composed = true;
  /// True if B is a device and the scores have forward_rows, a matrix product that routes each row as soon as its
  /// logits are ready. A run of one process then routes inside this product. The inner gate (see Inner) gets GivenRows
  /// as scores, because GivenRows also routes inside a product. Sums over a row then have the same order in both cases.
  template <class T, class B>
  static constexpr bool scores_rows = !B::is_host && detail_::hook::scores::forward_rows<S, T, B>();
  template <class T, class B>
  using OfLogits = ComposedGate<std::conditional_t<scores_rows<T, B>, GivenRows, GivenScores>, M, Sel, A...>;
  using OfMixed = ComposedGate<MixedScores, GivenMixing, Sel, A...>;
  /// True if items can be scored on their shard and selected by their logits. The scores must have no extra inputs,
  /// because these could depend on the position of an item in the batch. The selection must not read items.
  static constexpr bool selects_by_logits = !detail_::named::Extra<S>() && reads_logits_alone<Sel>;
  /// True if the logits of all shards are enough to route: `selects_by_logits` is true, the mixing reads only the
  /// logits of the same row, and it has no parameters.
  template <class T, class B>
  static constexpr bool by_logits =
      selects_by_logits&& detail_::hook::mixing::rows<M, T, B>() && std::same_as<Params<M, T, B>, Nothing<T, B>>;
  static constexpr bool by_mixed = selects_by_logits && mixes_within_sequences<M>;
};

template <class GateT, class T, class B>
constexpr Sees sees() {
  if constexpr (routes_alone<GateT> || !std::same_as<Plan<GateT, T, B>, SparsePlan<T, B>>) {
    return Sees::own;
  } else if constexpr (Parts<GateT>::composed) {
    return Parts<GateT>::template by_logits<T, B> ? Sees::logits : Parts<GateT>::by_mixed ? Sees::mixed : Sees::items;
  } else {
    return Sees::items;
  }
}
/// Types for the inner gate, which routes the items of all shards. `Type` is its policy. `Mixed` holds the saved values
/// of a mixing that is computed on the shards of the items.
template <class GateT, class T, class B, Sees = sees<GateT, T, B>()>
struct Inner {
  using Type = GateT;
  using Mixed = Nothing<T, B>;
};
template <class GateT, class T, class B>
struct Inner<GateT, T, B, Sees::logits> {
  using Type = typename Parts<GateT>::template OfLogits<T, B>;
  using Mixed = Nothing<T, B>;
};
template <class GateT, class T, class B>
struct Inner<GateT, T, B, Sees::mixed> {
  using Type = typename Parts<GateT>::OfMixed;
  struct Mixed {
    Tensor<T, 2, B> logits, probabilities;  // [N_i, E] of this shard's items
    gatefold::Saved<typename GateT::Mixing, T, B> mixing;
  };
};

}  // namespace global

/// True if a selection (the part of a gate that chooses experts) chooses the experts of an item only from values of
/// that item, without noise. Specialise it for your own selection.
template <class SelectionT>
inline constexpr bool picks_alone = false;
template <>
inline constexpr bool picks_alone<TopK> = true;
template <>
inline constexpr bool picks_alone<Dense> = true;
template <>
inline constexpr bool picks_alone<ScheduledTopK> = true;
template <>
inline constexpr bool picks_alone<SigmoidBias> = true;  // the biases follow the loads of all shards, which are added up

namespace local {

/// The member `is_enough` is true if a gate that routes only the items of one shard chooses the same experts for each
/// item as a gate that routes the whole batch.
template <class GateT, class B>
struct Composed {
  static constexpr bool is_enough = false;
};
/// For a gate that is made of parts, `is_enough` is true if every part routes each item independently of the other
/// items, and the gate has no auxiliary losses.
template <class S, class M, class Sel, class... A, class B>
struct Composed<ComposedGate<S, M, Sel, A...>, B> {
  static constexpr bool is_enough = sizeof...(A) == 0 && !detail_::named::Extra<S>() &&
                                    detail_::hook::mixing::rows<M, float, B>() && picks_alone<Sel>;
};
template <class PrimaryT, class SecondaryT, class B>
struct Composed<HierarchicalGate<PrimaryT, SecondaryT>, B> {
  static constexpr bool is_enough = Composed<PrimaryT, B>::is_enough && Composed<SecondaryT, B>::is_enough;
};
template <class GateT, class B>
struct Routed {
  static constexpr bool is_enough =
      global::sees<GateT, float, B>() == global::Sees::own || Composed<GateT, B>::is_enough;
};
template <class GateT, class B>
struct Routed<WeightOnInput<GateT>, B> : Routed<GateT, B> {};
template <class GateT, class B>
constexpr bool is_enough() {
  return Routed<GateT, B>::is_enough;
}

/// Checks at compile time the gates of all mixtures in a model's parameters, except mixtures inside an ExpertParallel.
/// A gate that depends on the whole batch does not compile.
template <class B, class P>
void check_gates(const P& params) {
  if constexpr (!detail_::pack::is_tensor<P> && !detail_::pack::is_sharded<P>) {
    if constexpr (requires { typename P::TaskGate; })
      GATEFOLD_REQUIRE((is_enough<typename P::TaskGate, B>()),
                       "gatefold: on shards the gates of this MultiGate would read only the items of their shard, but "
                       "auxiliary losses, mixing, capacity, choices of experts and noise depend on the whole batch: "
                       "use gates without them; see docs/how-to/distributed.md#gates-on-shards");
    if constexpr (requires { typename P::OfCompetition; })
      GATEFOLD_REQUIRE(std::is_void_v<P>,
                       "gatefold: on shards the router loss of a Competition would be a mean over the items of one "
                       "shard: train a Competition in one process; see docs/how-to/distributed.md#gates-on-shards");
    if constexpr (requires { typename P::Gate; })
      GATEFOLD_REQUIRE((is_enough<typename P::Gate, B>()),
                       "gatefold: on shards the gate of this Mixture would read only the items of its shard, but "
                       "auxiliary losses, mixing, capacity, choices of experts and noise depend on the whole batch: "
                       "use ExpertParallel{mixture, &shard}; see docs/how-to/distributed.md#gates-on-shards");
    detail_::pack::each_part([](auto, const auto& part) { check_gates<B>(part); }, params);
  }
}

}  // namespace local

// Parts of a gate (router) that return values which each shard has already computed for its own items, for example
// logits. The parts get these values as their items x. backward therefore adds the gradients of the values to dx.

/// A scores policy (the part of a gate that computes logits) for items that are already rows of logits. It returns
/// these rows.
///
///     z = x                                                                                             (1)
struct GivenScores {
  Index experts = 0;
  template <class T, class B>
  void forward(typename B::Context& ctx, const Nothing<T, B>&, In<T, 2, B> x, Out<T, 2, B> z) const {
    copy(ctx, x, z);
  }
  /// Adds dz to dx, because the logits z are the items x.
  template <class T, class B>
  void backward(typename B::Context& ctx, const Nothing<T, B>&, In<T, 2, B>, In<T, 2, B> dz, Out<T, 2, B> dx,
                Nothing<T, B>&) const {
    add(ctx, dz, dx);
  }
};

/// Like GivenScores, for a gate whose scores have the function forward_rows, which routes each row inside the matrix
/// product of the logits. On a device, several lanes (threads) then compute a row together, as in a run of one process,
/// so that sums over the row have the same order. Here, forward_rows is a product with inner dimension 0, whose
/// epilogue loads the given logits.
struct GivenRows : GivenScores {
  /// The epilogue of this product: returns element [n, e] of the given logits z.
  template <class T, class B>
  struct Given {
    View<const T, 2, B> z;
    template <class A>
    GATEFOLD_HD typename A::Value operator()(const A& at, Index, Index n, Index e, typename A::Value) const {
      return at.load(z.data() + n * z.extent(1) + e);
    }
  };
  template <class T, class B, class F>
  void forward_rows(typename B::Context& ctx, const Nothing<T, B>&, In<T, 2, B> x, Out<T, 2, B> z,
                    const F& rows) const {
    const View<const T, 2, B> a(nullptr, x.extent(0), 0), b(nullptr, 0, x.extent(1));
    B::gemm_rows(ctx, a, b, false, z, Given<T, B>{x}, rows);
  }
};

/// The layout of one row that a mixing has computed for an item on the item's shard: logits z, ranks, and probabilities
/// q, with E numbers each (one per expert).
///
///     x[n,:] = [z[n,:], rank[n,:], q[n,:]]                                                              (2)
template <class T, class B>
struct MixedRows {
  enum Part { logits, rank, probabilities, parts };

  /// Writes the matrix `from` [N, E] to one part of `rows` (logits, ranks or probabilities), or adds it to this part. A
  /// call handles element i = n E + e.
  struct Put {
    View<const T, 2, B> from;
    Index first;
    bool adds;
    View<T, 2, B> rows;
    GATEFOLD_HD void operator()(Index i) const {
      T& to = rows(i / from.extent(1), first + i % from.extent(1));
      to = adds ? to + from.data()[i] : from.data()[i];
    }
  };
  /// Reads one part of `rows` (logits, ranks or probabilities) into the matrix `to` [N, E]. A call handles element i =
  /// n E + e.
  struct Take {
    View<const T, 2, B> rows;
    Index first;
    View<T, 2, B> to;
    GATEFOLD_HD void operator()(Index i) const { to.data()[i] = rows(i / to.extent(1), first + i % to.extent(1)); }
  };

  /// Writes the matrix `from` to one part of `rows`, or adds it to this part if `adds` is true.
  static void put(typename B::Context& ctx, View<const T, 2, B> from, Part part, View<T, 2, B> rows, bool adds) {
    B::for_each(ctx, from.size(), Put{from, part * from.extent(1), adds, rows});
  }
  static void take(typename B::Context& ctx, View<const T, 2, B> rows, Part part, View<T, 2, B> to) {
    B::for_each(ctx, to.size(), Take{rows, part * to.extent(1), to});
  }
};

/// A scores policy (the part of a gate that computes logits) that reads the logits from rows with the layout MixedRows.
struct MixedScores {
  Index experts = 0;
  template <class T, class B>
  void forward(typename B::Context& ctx, const Nothing<T, B>&, In<T, 2, B> x, Out<T, 2, B> z) const {
    using Rows = MixedRows<T, B>;
    Rows::take(ctx, x, Rows::logits, z);
  }
  /// Adds dz, the gradient of the logits, to the logits in the rows of dx, which have the layout MixedRows.
  template <class T, class B>
  void backward(typename B::Context& ctx, const Nothing<T, B>&, In<T, 2, B>, In<T, 2, B> dz, Out<T, 2, B> dx,
                Nothing<T, B>&) const {
    using Rows = MixedRows<T, B>;
    Rows::put(ctx, dz, Rows::logits, dx, true);
  }
};
/// A mixing (a part of a gate) that reads ranks and probabilities from rows with the layout MixedRows. The inner gate
/// sets the rows of padding to 0. For these rows, forward writes the probability 1/E for each of the E experts.
struct GivenMixing {
  template <class T, class B>
  struct Saved {
    Tensor<T, 2, B> rank;  // [N, E]
  };
  template <class T, class B>
  struct Extra {
    View<const T, 1, B> valid{};  // [N] 1 = item, 0 = padding; if empty, no item is padding
    Extra with_valid(View<const T, 1, B> mask) const { return {mask}; }
  };
  /// Sets the probability q[n,e] to 1/E if item n is padding, for E experts. A call handles element i = n E + e.
  template <class T, class B>
  struct SpreadPadding {
    View<const T, 1, B> valid;
    View<T, 2, B> q;
    GATEFOLD_HD void operator()(Index i) const {
      const Index experts = q.extent(1);
      if (valid(i / experts) == 0) q.data()[i] = T(1) / static_cast<T>(experts);
    }
  };

  template <class T, class B>
  void forward(typename B::Context& ctx, const Nothing<T, B>&, In<T, 2, B> x, In<T, 2, B> z, Out<T, 2, B> q,
               Saved<T, B>& saved, const Extra<T, B>& extra) const {
    using Rows = MixedRows<T, B>;
    saved.rank.resize(z.extent(0), z.extent(1));
    Rows::take(ctx, x, Rows::rank, saved.rank);
    Rows::take(ctx, x, Rows::probabilities, q);
    if (!extra.valid.empty()) B::for_each(ctx, q.size(), SpreadPadding<T, B>{extra.valid, q});
  }
  template <class T, class B>
  View<const T, 2, B> rank(View<const T, 2, B>, const Saved<T, B>& saved) const {
    return saved.rank;
  }
  /// Sets dz, the gradient of the logits, to 0. Adds `drank` and `dq` to the ranks and probabilities in the rows of dx,
  /// which have the layout MixedRows.
  template <class T, class B>
  void backward(typename B::Context& ctx, const Nothing<T, B>&, In<T, 2, B>, In<T, 2, B>, In<T, 2, B>,
                const Saved<T, B>&, In<T, 2, B> drank, In<T, 2, B> dq, Out<T, 2, B> dz, Out<T, 2, B> dx, Nothing<T, B>&,
                const Extra<T, B>&, Nothing<T, B>&) const {
    using Rows = MixedRows<T, B>;
    fill(ctx, dz, 0);
    Rows::put(ctx, drank, Rows::rank, dx, true);
    Rows::put(ctx, dq, Rows::probabilities, dx, true);
  }
};

}  // namespace gatefold::dist
