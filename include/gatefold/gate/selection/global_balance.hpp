#pragma once

#include <string_view>

#include "gatefold/gate/auxiliary/balance_loss.hpp"
#include "gatefold/gate/selection/top_k.hpp"
#include "gatefold/tensor/expect_shape.hpp"

namespace gatefold {

GATEFOLD_FUNCTORS((class T, class B), AddCounts, GlobalSlopes);

/// Adds a balance loss to a selection, for a batch that is divided into parts (micro-batches). The loss uses the loads
/// of all parts that `Trainer.accumulate` and `step` have processed since the last training step. An even load of the
/// whole batch then suffices, and different parts can prefer different experts.
///
///     loss = weight · E · Σ_e f_e P_e,   P_e = (1/N) Σ_n q[n,e] of this part                             (1)
///     f_e = share of expert e in the picks of all parts so far                                           (2)
///
/// Source: Qiu et al. 2025, "Demons in the Detail", arXiv:2501.11873, sec. 3, with the buffer for micro-batches.
///
/// Use GlobalBalance in place of Balance if the batch is divided into parts. With one part, the two are equal. A
/// selection has no memory between parts. Therefore backward adds the number of picks of each expert to the gradient of
/// `balance.count`, which the Trainer sets to 0 before the first part of a batch. The last element of `saved.auxiliary`
/// is the loss (1), but with f_e counted only in the picks of the same part.
///
/// f_e counts the picks of expert e, including picks that were dropped because of a capacity. A count has no
/// derivative, so the gradient flows only through P. On the shards of an ExpertParallel, a part consists of the items
/// of all shards. In a DataParallel, f_e counts only the picks of one process.
/// @param selection  any selection without an auxiliary loss of its own. Put a Capacity inside:
///         GlobalBalance<Capacity<>>
/// @throws ArgumentError if weight is not finite, and in the cases in which the selection throws
/// @cost  the selection, N·(E + K) reads and a counting sort of the picks
/// @order the picks of a part are counted in integers, and the counts of the parts are added in T. P is summed in
///        double, on the CPU in the order of the items
template <class SelectionT = TopK>
struct GlobalBalance {
  GATEFOLD_REQUIRE(
      !detail_::named::auxiliary_loss<SelectionT>(),
      "gatefold: GlobalBalance takes a selection without an auxiliary loss of its own, for example TopK; see "
      "docs/how-to/routers.md#balance-of-a-global-batch");
  static constexpr bool shows_noise = detail_::hook::selection::shows_noise<SelectionT>();
  static constexpr bool picks_by_item = detail_::hook::selection::picks_by_item<SelectionT>();
  SelectionT selection{};
  double weight = 0.01;
  Index experts = 0;

  template <class T, class B>
  struct Counts {
    static constexpr bool gradient_is_optional = true;
    static constexpr bool learned = false;
    Tensor<T, 1, B> count;  // [E] always 0; its gradient has the numbers of picks of all parts so far
    GATEFOLD_PACK(count)
    static constexpr int expert_extents[] = {0};
    /// Does nothing. A Trainer allocates gradients of tensors that are not learned only if their pack has a member
    /// `adapt`, and backward stores counts in the gradient of `count`.
    void adapt(typename B::Context&, const Counts&) {}
  };
  template <class T, class B>
  struct Params {
    gatefold::Params<SelectionT, T, B> selection;  // names of its tensors have no prefix
    Counts<T, B> balance;
    static void each(auto&& f, auto&... p) {
      f("", p.selection...);
      f("balance", p.balance...);
    }
  };
  template <class T, class B>
  using Saved = gatefold::Saved<SelectionT, T, B>;
  template <class T, class B>
  using Extra = gatefold::Extra<SelectionT, T, B>;

  template <class T, class B>
  Params<T, B> init(typename B::Context& ctx, Seed seed) const {
    validate_options(experts);
    return {init_params<T, B>(selection, ctx, seed), {constant_tensor<T>(ctx, 0, experts)}};
  }
  void validate_options(Index of_experts) const {
    expect_finite("GlobalBalance", "weight", weight);
    if constexpr (detail_::hook::selection::validate_options<SelectionT>()) selection.validate_options(of_experts);
  }
  template <class T, class B>
  void validate(const Params<T, B>& p, Index items, const Extra<T, B>& extra) const {
    expect_shape("GlobalBalance", "params.balance.count", p.balance.count, {experts});
    if constexpr (detail_::hook::selection::validate<SelectionT, T, B>()) selection.validate(p.selection, items, extra);
  }

  template <class T, class B>
  void forward(typename B::Context& ctx, const Params<T, B>& p, const Candidates<T, B>& c, SparsePlan<T, B>& plan,
               Saved<T, B>& saved, const Extra<T, B>& extra) const {
    validate(p, c.q.extent(0), extra);
    selection.forward(ctx, p.selection, c, plan, saved, extra);
  }
  /// Writes the loss (1) to value [1]. The shares f_e count only the picks of this part of the batch.
  template <class T, class B>
  void auxiliary_loss(typename B::Context& ctx, const Params<T, B>&, const Candidates<T, B>& c,
                      const SparsePlan<T, B>& plan, const Saved<T, B>&, Out<T, 1, B> value) const {
    auto mark = ctx.mark();
    (void)functor::balance(ctx, GateOutcome<T, B>{c.rank, c.q, plan, c.valid}, 1, T(weight), false, value);
  }
  /// Returns the noisy values by which the selection ordered the experts, or empty views if it has no noise.
  template <template <class, class> class S, class T, class B>
  NoisyRank<const T, B> noisy(const S<T, B>& saved) const {
    return detail_::selection::noisy_rank<T, B>(selection, saved);
  }
  /// Calls backward of the selection. In the first evaluation of a layer in a training step, also adds the picks of
  /// this part to the gradient of balance.count, and the gradient of the loss (1) to d.q.
  template <class T, class B>
  void backward(typename B::Context& ctx, const Params<T, B>& p, const Candidates<T, B>& c,
                const SparsePlan<T, B>& plan, const Saved<T, B>& saved, const typename SparsePlan<T, B>::Grad& dplan,
                const CandidatesGrad<T, B>& d, Params<T, B>& grads, const Extra<T, B>& extra) const {
    selection.backward(ctx, p.selection, c, plan, saved, dplan, d, grads.selection, extra);
    if (!c.first_evaluation) return;
    auto mark = ctx.mark();
    const GateOutcome<T, B> a{c.rank, c.q, plan, c.valid};
    const Index items = c.q.extent(0);
    const auto offsets = functor::sorted_loads(ctx, a, Index(1), Index(1), items > 0 ? items : Index(1));
    const auto valid = functor::count_valid(ctx, a);
    const auto slope = ctx.template scratch<T>(experts);
    View<T, 1, B> count;
    if (grads.balance.count.is_skipped()) {
      count = ctx.template scratch<T>(experts);
      fill(ctx, count, 0);
    } else {
      count = grads.balance.count.view();
    }
    B::for_each(ctx, experts, functor::AddCounts<T, B>{offsets, count});
    B::for_each(ctx, experts, functor::GlobalSlopes<T, B>{count, valid, T(weight), slope});
    B::for_rows(ctx, items, functor::TotalBackward<T, B>{slope, {c.valid}, d.q});
  }
};
template <class S>
GlobalBalance(S) -> GlobalBalance<S>;
template <class S>
GlobalBalance(S, double) -> GlobalBalance<S>;

namespace functor {

/// Adds the number of picks of expert e in this part to count[e].
template <class T, class B>
struct AddCounts {
  View<const Index, 1, B> offsets;  // [E + 1] start of each expert in the sorted picks
  View<T, 1, B> count;
  GATEFOLD_HD void operator()(Index e) const { count(e) += static_cast<T>(offsets(e + 1) - offsets(e)); }
};
/// Writes to slope[e] the derivative of the loss (1) of GlobalBalance by the probability q[n,e], which is the same for
/// every item n.
template <class T, class B>
struct GlobalSlopes {
  View<const T, 1, B> count, items;
  T weight;
  View<T, 1, B> slope;
  GATEFOLD_HD void operator()(Index e) const {
    T sum = 0;
    for (Index f = 0; f < count.size(); ++f) sum += count(f);
    slope(e) = sum > 0 && items(0) > 0 ? weight * T(count.size()) * (count(e) / sum) / items(0) : T(0);
  }
};

}  // namespace functor

}  // namespace gatefold
