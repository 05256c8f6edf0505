#pragma once

#include <utility>

#include "gatefold/backend/backend.hpp"
#include "gatefold/backend/epilogue.hpp"
#include "gatefold/backend/groups.hpp"
#include "gatefold/backend/lanes.hpp"
#include "gatefold/routing/sequence.hpp"
#include "gatefold/routing/sparse_plan.hpp"

namespace gatefold {

GATEFOLD_FUNCTORS((class B), SlotRows);
GATEFOLD_FUNCTORS((class T, class B), StoreValid);

/// A plan (the routing of a batch) in which every item goes to every expert with some weight. The input of slot p of
/// expert e is a weighted sum of the items x of a sequence g. The output of item n is a weighted sum of the experts'
/// outputs z for its sequence g(n):
///
///     in[g,e,p]  = Σ_{n in sequence g} dispatch[(g,e,p), n] x[n]                                         (1)
///     out[n]     = Σ_{e,p} combine[n, (e,p)] z[g(n),e,p]                                                 (2)
///
/// A gate calls `resize` and then writes dispatch_weight and combine_weight, with weight 0 for padding. Experts get the
/// slots grouped by expert, then by sequence. Items of different sequences do not affect each other. Padding is never
/// read, and its output is 0. There are N items of width D, E experts, and P slots per expert and sequence.
/// @cost   4·N·E·P·D flop forward; memory for 2·N·E·P weights and for S = E·sequences·P slots of width D
/// @order  sums run over ascending items and ascending slots
template <class T, class B>
struct DensePlan {
  Tensor<T, 2, B> dispatch_weight;  // [sequences · E · P, length], rows ordered by (sequence, expert, slot)
  Tensor<T, 2, B> combine_weight;   // [N, E · P]
  Tensor<T, 2, B> inputs;           // [N, D] rows that dispatch sums in place of the items x; if empty, it sums x
  Tensor<T, 2, B> slots;  // [sequences · E · P, D], inputs of the experts, ordered by (sequence, expert, slot)
  Tensor<T, 1, B> valid;  // [N] 1 for an item, 0 for padding; if empty, there is no padding
  // Slots are numbered by (expert, sequence), but the rows of `slots` are ordered by (sequence, expert). Therefore slot
  // s has the row rows[s] of `slots`, with rows [S]. offsets [E + 1]: first slot of each expert. item_offsets,
  // slot_offsets [sequences + 1]: first item and first row of `slots` of each sequence.
  Tensor<Index, 1, B> offsets, rows, item_offsets, slot_offsets;

  /// The gradients of the weights of the plan. combine_backward and dispatch_backward write them, and the backward pass
  /// of the gate reads them.
  struct Grad {
    View<T, 2, B> dispatch_weight, combine_weight;
    View<T, 2, B> inputs;  // [N, D] gradient of `inputs` of the plan; empty if the plan has no `inputs`
  };

  void resize(typename B::Context& ctx, Index items, Index experts, Index slots_per_expert, const Sequence<T, B>& of) {
    const Index length = of.of(items), sequences = length > 0 ? items / length : 0, each = experts * slots_per_expert;
    dispatch_weight.resize(sequences * each, length);
    combine_weight.resize(items, each);
    inputs.resize(0, 0);
    valid.resize(of.valid.size());
    copy(ctx, of.valid, valid.view());
    offsets.resize(experts + 1);
    rows.resize(sequences * each);
    item_offsets.resize(sequences + 1);
    slot_offsets.resize(sequences + 1);
    B::for_each(ctx, offsets.size(), functor::EvenOffsets<B>{sequences * slots_per_expert, offsets});
    B::for_each(ctx, rows.size(), functor::SlotRows<B>{experts, sequences, slots_per_expert, rows});
    B::for_each(ctx, item_offsets.size(), functor::EvenOffsets<B>{length, item_offsets});
    B::for_each(ctx, slot_offsets.size(), functor::EvenOffsets<B>{each, slot_offsets});
  }

  Index items() const { return combine_weight.extent(0); }
  Index experts() const { return offsets.size() - 1; }
  Index sequences() const { return item_offsets.size() - 1; }
  Groups<B> groups() const { return {offsets, rows, rows.size()}; }

  /// Returns the items x with padding set to 0. The result can be in scratch memory, so the caller must hold a mark
  /// (`ctx.mark()`, the scope of such memory).
  View<const T, 2, B> without_padding(typename B::Context& ctx, In<T, 2, B> x) const {
    return gatefold::without_padding<T, B>(ctx, x, valid.view());
  }

  Dispatched<T, B> dispatch(typename B::Context& ctx, In<T, 2, B> x) {
    auto mark = ctx.mark();
    slots.resize(rows.size(), x.extent(1));
    FullPrecision<B>::grouped_gemm(ctx, slots_of_sequences(), std::as_const(dispatch_weight).view(),
                                   by_sequence(sources(ctx, x)), false, slots.view(), functor::Store{});
    return dispatched(x);
  }
  Dispatched<T, B> dispatched(In<T, 2, B>) const { return {groups(), slots}; }

  /// Computes the output of each item, a weighted sum of the experts' outputs z (equation 2). Then calls step(at, i)
  /// for every element i of `out`.
  template <class Step = functor::NoStep<T>>
  void combine(typename B::Context& ctx, In<T, 2, B> z, Out<T, 2, B> out, const Step& step = {}) const {
    auto mark = ctx.mark();
    FullPrecision<B>::grouped_gemm(ctx, items_of_sequences(), combine_weight.view(), by_sequence(in_row_order(ctx, z)),
                                   false, out, functor::StoreValid<T, B>{valid});
    run_step(ctx, out, step);
  }

  Grad grad(typename B::Context& ctx) const {
    Grad g{ctx.template scratch<T>(dispatch_weight.extent(0), dispatch_weight.extent(1)),
           ctx.template scratch<T>(combine_weight.extent(0), combine_weight.extent(1)),
           ctx.template scratch<T>(inputs.extent(0), inputs.extent(1))};
    fill(ctx, g.inputs, 0);
    return g;
  }
  void combine_backward(typename B::Context& ctx, In<T, 2, B> z, In<T, 2, B> dout, Out<T, 2, B> dz, Grad& d) const {
    auto mark = ctx.mark();
    const auto dkept = without_padding(ctx, dout);
    FullPrecision<B>::grouped_gemm(ctx, items_of_sequences(), dkept, by_sequence(in_row_order(ctx, z)), true,
                                   d.combine_weight, functor::Store{});
    auto drows = sequences() == 1 ? dz : ctx.template scratch<T>(dz.extent(0), dz.extent(1));
    fill(ctx, drows, 0);
    FullPrecision<B>::grouped_outer(ctx, items_of_sequences(), combine_weight.view(), dkept, by_sequence(drows));
    if (sequences() != 1) B::for_rows(ctx, rows.size(), functor::CarryRows<T, T, T, B>{rows, drows, {}, dz});
  }
  /// The backward pass of `dispatch`. Writes the gradient of dispatch_weight. Also computes the gradient of the rows
  /// from which the slots are summed, and adds it to d.inputs if the plan has `inputs`, and to dx otherwise.
  void dispatch_backward(typename B::Context& ctx, In<T, 2, B> x, In<T, 2, B> dslots, Out<T, 2, B> dx, Grad& d) const {
    auto mark = ctx.mark();
    const auto drows = in_row_order(ctx, dslots);
    FullPrecision<B>::grouped_gemm(ctx, slots_of_sequences(), drows, by_sequence(sources(ctx, x)), true,
                                   d.dispatch_weight, functor::Store{});
    FullPrecision<B>::grouped_outer(ctx, slots_of_sequences(), dispatch_weight.view(), drows,
                                    by_sequence(d.inputs.empty() ? dx : d.inputs));
  }

 private:
  Groups<B> items_of_sequences() const { return {item_offsets, {}, items()}; }
  Groups<B> slots_of_sequences() const { return {slot_offsets, {}, rows.size()}; }
  auto by_sequence(auto x) const {
    const Index each = sequences() > 0 ? x.extent(0) / sequences() : 0;
    return x.as(sequences(), each, x.extent(1));
  }
  View<const T, 2, B> sources(auto& ctx, View<const T, 2, B> x) const {
    return inputs.size() > 0 ? inputs.view() : without_padding(ctx, x);
  }
  /// Returns the rows of z in the order (sequence, expert). The rows of z are in the order (expert, sequence).
  View<const T, 2, B> in_row_order(auto& ctx, View<const T, 2, B> z) const {
    if (sequences() == 1) return z;
    auto by_row = ctx.template scratch<T>(z.extent(0), z.extent(1));
    B::for_rows(ctx, rows.size(), functor::CarryRows<T, T, T, B>{{}, z, rows, by_row});
    return by_row;
  }
};

namespace functor {

/// Writes to rows[s] the row of slot s: slots are ordered by (expert, sequence, p), rows by (sequence, expert, p). p is
/// the number of the slot within its expert and sequence.
template <class B>
struct SlotRows {
  Index experts, sequences, each;
  View<Index, 1, B> rows;
  GATEFOLD_HD void operator()(Index s) const {
    rows(s) = (s / each % sequences * experts + s / (each * sequences)) * each + s % each;
  }
};
/// An epilogue (a functor that a matrix product applies to each element v) that returns v, or 0 if the row is padding.
template <class T, class B>
struct StoreValid {
  View<const T, 1, B> valid;  // [N] mask; empty: no padding
  template <class A>
  GATEFOLD_HD typename A::Value operator()(const A&, Index, Index s, Index, typename A::Value v) const {
    return valid.empty() || valid(s) != 0 ? v : typename A::Value(T(0));
  }
};

}  // namespace functor

}  // namespace gatefold
