#pragma once

#include <algorithm>
#include <limits>
#include <utility>

#include "gatefold/backend/elementwise.hpp"
#include "gatefold/backend/groups.hpp"
#include "gatefold/tensor/view.hpp"

namespace gatefold {

/// The expert number of an unused entry of a plan. A plan has unused entries if the gate chooses more experts for some
/// items than for others.
inline constexpr Index no_pick = std::numeric_limits<Index>::min();

GATEFOLD_FUNCTORS((class B), SlotItems);
GATEFOLD_FUNCTORS((class T, class B, class Z = T), Combine);
GATEFOLD_FUNCTORS((class T, class B), CombineBackward);

/// The inputs of the experts: the slots (rows of work) of each expert, and the matrix x whose rows the slots read.
template <class T, class B>
struct Dispatched {
  Groups<B> groups;
  View<const T, 2, B> x;
};

/// A routing plan: the experts that the gate chose for each of N items, with weights. A pick is one choice of the gate.
/// A slot is one row of work of an expert; the S slots are the picks sorted by expert. The output of item n is a
/// weighted sum of the experts' outputs z:
///
///     out[n] = Σ_{picks p of item n} weight[p] · z[slot of p]                                          (1)
///
/// A gate calls `resize`, writes item, expert and weight of every pick in any order, and then calls `build`. If a pick
/// of expert e is dropped, for example because the expert is full, the gate writes ~e (a negative number);
/// `functor::chosen` returns e. For an entry that no pick uses, the gate writes `no_pick`.
/// @throws ArgumentError from `resize` if a size is negative; from `build` if a pick has an expert or item that does
///         not exist; from `build_complete` if a pick is dropped or unused; from `dispatch` unless the plan was built
///         after the last `resize`. On a device, `build` and `build_complete` throw no error for wrong experts or items
/// @cost   building is two stable counting sorts, O(S + E) and O(S + N); combining reads every slot once
/// @order  slots of an expert are in pick order; slots of an item are summed by ascending slot, so by expert
template <class T, class B>
struct SparsePlan {
  Tensor<Index, 1, B> item, expert;  // [S] in pick order
  Tensor<T, 1, B> weight;            // [S]
  // offsets [E + 1]: first slot of each expert; pick, rows [S]: the pick and the item of each slot
  Tensor<Index, 1, B> offsets, pick, rows;
  Tensor<Index, 1, B> item_offsets, item_slots;  // [N + 1], [S]: the slots sorted by item
  bool built = false;                            // true after build, false after resize

  /// The gradient of the weights of the picks. combine_backward writes it, and the backward pass of the gate reads it.
  struct Grad {
    View<T, 1, B> weight;  // [S]
  };

  void resize(Index items, Index experts, Index picks) {
    expect(items >= 0, "SparsePlan.resize", "items", "at least 0", items);
    expect(experts >= 0, "SparsePlan.resize", "experts", "at least 0", experts);
    expect(picks >= 0, "SparsePlan.resize", "picks", "at least 0", picks);
    for (auto* t : {&item, &expert, &pick, &rows, &item_slots}) t->resize(picks);
    weight.resize(picks);
    offsets.resize(experts + 1);
    item_offsets.resize(items + 1);
    built = false;
  }
  void build(typename B::Context& ctx) {
    B::group_by(ctx, expert, offsets, pick);
    B::for_each(ctx, rows.size(), functor::SlotItems<B>{offsets, pick, item, rows});
    B::group_by(ctx, rows, item_offsets, item_slots);
    if constexpr (B::is_host)  // no check on a device: the host would have to wait for the stream
      expect(item_offsets(items()) == offsets(experts()), "SparsePlan.build", "item",
             "an item number of at least 0 for each pick", "negative numbers");
    built = true;
  }
  /// Builds the plan at less cost than `build`. Every item must have the same number K of picks, adjacent and in the
  /// order of items, and no pick may be dropped or unused.
  /// @cost one counting sort, and at most O(K²) comparisons per item
  void build_complete(typename B::Context& ctx) {
    const Index each = items() > 0 ? rows.size() / items() : 0;
    expect(each * items() == rows.size(), "SparsePlan.build_complete", "picks",
           "the same number for each item, because the selection declares complete_picks",
           Joined{rows.size(), " picks for ", items(), " items"});
    if constexpr (B::is_host) {  // no check on a device: the host would have to wait for the stream
      Index least = 0;
      for (Index p = 0; p < expert.size(); ++p) least = std::min(least, expert(p));
      expect(least == 0, "SparsePlan.build_complete", "expert",
             "an expert for each pick, because the selection declares complete_picks", "dropped or unused picks");
    }
    B::group_table(ctx, std::as_const(expert).view().as(items(), each), offsets.view(), pick.view(), rows.view(),
                   item_offsets.view(), item_slots.view());
    built = true;
  }

  /// Returns the number of items of the plan, or 0 before the first `resize`.
  Index items() const { return std::max<Index>(item_offsets.size() - 1, 0); }
  Index experts() const { return std::max<Index>(offsets.size() - 1, 0); }
  Groups<B> groups() const { return {offsets, rows, rows.size()}; }

  /// Returns the inputs of the experts: the items x, and for each slot (row of work of an expert) the number of the
  /// item that it reads. The rows of x are not sorted by expert, because a backend gathers the rows of an expert while
  /// it reads them.
  Dispatched<T, B> dispatch(typename B::Context&, In<T, 2, B> x) {
    expect(built, "SparsePlan.dispatch", "plan", "a built plan (the gate must call plan.build(ctx))",
           "a plan that is not built");
    return {groups(), x};
  }
  Dispatched<T, B> dispatched(In<T, 2, B> x) const { return {groups(), x}; }

  /// Computes the output of each item, the weighted sum (1) of the experts' outputs z. Then calls step(at, i) for every
  /// element i of `out`.
  /// @tparam Z  the type in which z is stored
  template <class Z = T, class Step = functor::NoStep<T>>
  void combine(typename B::Context& ctx, In<Z, 2, B> z, Out<T, 2, B> out, const Step& step = {}) const {
    for_rows(ctx, out, functor::Combine<T, B, Z>{item_offsets, item_slots, pick, weight, z, out, false}, step);
  }

  Grad grad(typename B::Context& ctx) const {
    Grad g{ctx.template scratch<T>(weight.size())};
    fill(ctx, g.weight, 0);
    return g;
  }
  void combine_backward(typename B::Context& ctx, In<T, 2, B> z, In<T, 2, B> dout, Out<T, 2, B> dz, Grad& d) const {
    B::for_rows(ctx, rows.size(), functor::CombineBackward<T, B>{groups(), pick, weight, z, dout, dz, d.weight});
  }
  /// Returns the weights of the slots, and memory for their gradients. An expert whose backward pass takes these
  /// weights computes their gradients itself; combine_backward is then not called.
  SlotWeights<T, B> slot_weights(const Grad& d) const { return {weight, d.weight, pick}; }
  /// The backward pass of `dispatch`: adds to dx[n] the sum of dslots[s], the gradients of the experts' inputs, over
  /// the slots s of item n.
  template <class Z = T>
  void dispatch_backward(typename B::Context& ctx, In<T, 2, B>, In<Z, 2, B> dslots, Out<T, 2, B> dx, Grad&) const {
    B::for_rows(ctx, dx.extent(0), functor::Combine<T, B, Z>{item_offsets, item_slots, pick, {}, dslots, dx, true});
  }
};

namespace functor {

/// Returns the expert e that the gate chose for a pick, given the entry of the plan. This entry is ~e for a dropped
/// pick, and e for any other pick.
GATEFOLD_HD inline Index chosen(Index expert) { return expert < 0 ? ~expert : expert; }

/// Writes the item of each slot s: rows[s] = item[pick[s]]. Entries after the last slot in use get −1, because they
/// belong to no item.
template <class B>
struct SlotItems {
  View<const Index, 1, B> offsets, pick, item;
  View<Index, 1, B> rows;
  GATEFOLD_HD void operator()(Index s) const {
    rows(s) = s < offsets(offsets.extent(0) - 1) ? item(pick(s)) : Index(-1);
  }
};

/// Computes the outputs of items: out[n] = Σ w[s] z[s] over the slots s of item n in ascending order; z[s] is the
/// output of an expert and w[s] its weight (1 if `weight` is empty). If `accumulate` is true, adds the products to
/// out[n] instead, one after the other. On the CPU every product is rounded before it is added. The functor `take`, if
/// given, stores the elements (for_rows).
/// @tparam Z  the type in which z is stored
template <class T, class B, class Z>
struct Combine {
  View<const Index, 1, B> item_offsets, item_slots, pick;
  View<const T, 1, B> weight;
  View<const Z, 2, B> z;
  View<T, 2, B> out;
  bool accumulate;

  GATEFOLD_HD void operator()(const auto& lanes, Index n) const { (*this)(lanes, n, ToItsPlace<T>{out.data()}); }
  template <class Lanes, class Take>
  GATEFOLD_HD void operator()(const Lanes& lanes, Index n, const Take& take) const {
    Slots s = from_first(lanes, [&] { return slots_of(item_offsets(n), item_offsets(n + 1)); });
    bool add = accumulate;
    for (; s.count > few; s = from_first(lanes, [&] { return slots_of(s.begin + few, s.begin + s.count); })) {
      sum(lanes, n, s, add, ToItsPlace<T>{out.data()});
      add = true;
    }
    sum(lanes, n, s, add, take);
  }
  GATEFOLD_HD Index independent_columns() const { return out.extent(1); }

 private:
  static constexpr int few = 4;  // number of slots that are read and summed together
  struct Slots {
    Index begin, count;  // slots still to be summed: item_slots[begin], …, item_slots[begin + count - 1]
    Index slot[few];
    T weight[few];
  };
  GATEFOLD_HD Slots slots_of(Index begin, Index end) const {
    Slots s{begin, end - begin, {}, {}};
    for (int i = 0; i < few; ++i)
      if (i < s.count) s.slot[i] = item_slots(begin + i);
    for (int i = 0; i < few; ++i)
      if (i < s.count) s.weight[i] = weight_of(s.slot[i]);
    return s;
  }
  /// Adds up the weighted outputs of the experts for up to `few` slots of item n.
  template <class Lanes, class Take>
  GATEFOLD_HD void sum(const Lanes& lanes, Index n, const Slots& s, bool add, const Take& take) const {
    const Index columns = out.extent(1);
    const int count = s.count < few ? static_cast<int>(s.count) : few;
    const Z* from[few];
    for (int i = 0; i < few; ++i) from[i] = row(s.slot[i]);
    const Index first = n * columns;
    each_column<T>(lanes, columns, [&](auto at, Index j) {
      using Value = typename decltype(at)::Value;
      Value term[few];  // all values are loaded before the first is used, so that the loads overlap
      for (int i = 0; i < few; ++i) term[i] = i < count ? at.load(from[i] + j) : Value(T(0));
      Value total = add ? at.load(out.data() + first + j) : Value(T(0));
      for (int i = 0; i < few; ++i)
        if (i < count) total += s.weight[i] * term[i];
      take(at, first + j, total);
    });
  }
  GATEFOLD_HD const Z* row(Index slot) const { return z.data() + slot * z.extent(1); }
  GATEFOLD_HD T weight_of(Index slot) const { return weight.data() ? weight(pick(slot)) : T(1); }
};

/// The backward pass of Combine. For each slot s of item n, writes the gradient of the expert's output, dz[s] = w[s]
/// dout[n], and of the weight, dw[s] = ⟨dout[n], z[s]⟩.
template <class T, class B>
struct CombineBackward {
  Groups<B> groups;
  View<const Index, 1, B> pick;
  View<const T, 1, B> weight;
  View<const T, 2, B> z, dout;
  View<T, 2, B> dz;
  View<T, 1, B> dweight;

  GATEFOLD_HD void operator()(const auto& lanes, Index s) const {
    if (s >= from_first(lanes, [&] { return groups.offsets(groups.experts()); })) return;
    const Index columns = z.extent(1), p = from_first(lanes, [&] { return pick(s); });
    const Index item = from_first(lanes, [&] { return groups.row(s); });
    const T w = from_first(lanes, [&] { return weight(p); });
    const T *from = dout.data() + item * columns, *value = z.data() + s * columns;
    T* to = dz.data() + s * columns;
    const T dot = sum_columns<T>(lanes, columns, [&](auto at, Index j) {
      // Load both values before the store, because dz and z can be the same memory.
      const auto d = at.load(from + j), v = at.load(value + j);
      at.store(to + j, w * d);
      return d * v;
    });
    if (lanes.lane == 0) dweight(p) = dot;
  }
};

}  // namespace functor

/// The weights w of slots, and memory for their gradients. The output of an item is Σ w[s] z[s] over its slots s, with
/// z[s] the output of an expert for slot s. The arrays are in the order of the picks: a pick is one choice of the gate,
/// and slots are the picks sorted by expert.
template <class T, class B>
struct SlotWeights {
  View<const T, 1, B> weight{};    // [picks] in
  View<T, 1, B> dweight{};         // [picks] out
  View<const Index, 1, B> pick{};  // [S] pick of each slot; empty: slot s is pick s

  GATEFOLD_HD T operator()(Index s) const { return weight(of(s)); }
  GATEFOLD_HD void set_adjoint(Index s, T v) const { dweight(of(s)) = v; }

 private:
  GATEFOLD_HD Index of(Index s) const { return pick.data() ? pick(s) : s; }
};

}  // namespace gatefold
