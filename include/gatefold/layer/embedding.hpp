#pragma once

#include "gatefold/backend/initial_values.hpp"
#include "gatefold/backend/math.hpp"
#include "gatefold/layer/layer.hpp"
#include "gatefold/policy/options.hpp"
#include "gatefold/routing/sequence.hpp"
#include "gatefold/tensor/table.hpp"

namespace gatefold {

GATEFOLD_FUNCTORS((class T, class B), TakeById, AddById, AddByPlace);

/// Looks up a row of a learned table W [V, D] for each id, for example a token. Embedding is the first layer of a
/// language model; its items are ids (layer.hpp).
///
///     u[n] = W[id[n]],   dW[v] = Σ_{n: id[n] = v} du[n]                                                   (1)
///     u[n] = W[id[n]] + P[n mod length]              with positions P [L, D], L ≥ length                  (2)
///
/// If the gradient is sparse (option `sparse`), backward, zeroing, gradient norms and optimizers access only rows with
/// a gradient other than 0. A mark of one byte per row identifies these rows. An optimizer then changes neither the
/// weights nor the moments of the other rows, and does not apply weight decay to them (optim/adamw.hpp). An id that
/// occurs only in padding has gradient 0 if du of padding is 0. If a loss shares W (loss/streamed_cross_entropy.hpp),
/// the loss writes all rows, so the gradient is dense.
///
/// Source: torch.nn.Embedding, also with its option `sparse`; (2) has the learned positions of Radford et al. 2018
/// (GPT).
/// @param x [N] in ids, u [N, D] out
/// @param places   L, the largest length of a sequence. Each position has a row in P, and the gradient of P is dense.
///         If places is 0, there is no P, and extra inputs are not read
/// @param extra    `.length`, the number of items of each sequence (0: all items are one sequence)
/// @param sparse   if false, every step updates all rows of W, including rows whose gradient is 0
/// @param initial  initial values of W and P; their fan-in is their number of rows
/// @throws ArgumentError if vocabulary < 1, model_dim < 1, places < 0, a shape is wrong, a sequence is longer than
///         `places` (unless places is 0), or (on a host) an id is not in [0, vocabulary)
/// @cost   forward copies N·D values; backward makes N·D additions and a counting sort, O(N + V)
/// @order  the gradients of an id are summed in the order of the items; bitwise equal for every thread count
struct Embedding {
  Index vocabulary = 0, model_dim = 0, places = 0;
  bool sparse = true;
  Initial initial = Initial::normal(1);

  template <class T, class B>
  using Items = View<const Index, 1, B>;
  template <class T, class B>
  struct Params {
    static constexpr bool gradient_is_optional = true;
    Table<T, B> weight;     // [V, D]
    Tensor<T, 2, B> place;  // [L, D]
    GATEFOLD_PACK(weight, place)
  };

  template <class T, class B>
  using Extra = Sequence<T, B>;

  GATEFOLD_BRANCH_CALLS;
  Index in_dim() const { return vocabulary; }
  Index out_dim() const { return model_dim; }

  template <class T, class B>
  Params<T, B> init(typename B::Context& ctx, Seed seed) const {
    expect_sizes("Embedding.init", {{"vocabulary", vocabulary}, {"model_dim", model_dim}});
    expect(places >= 0, "Embedding.init", "places", "at least 0", places);
    return {initial_weights<T>(ctx, initial, seed.fork(0), vocabulary, model_dim),
            initial_weights<T>(ctx, initial, seed.fork(1), places, model_dim)};
  }
  template <class T, class B>
  void validate(const Params<T, B>& p, Index items, const Sequence<T, B>& extra) const {
    expect_shape("Embedding", "params.weight", p.weight, {vocabulary, model_dim});
    expect_shape("Embedding", "params.place", p.place, {places, model_dim});
    if (places == 0) return;
    expect(extra.length >= 0, "Embedding", "sequence.length", "at least 0", extra.length);
    expect(extra.of(items) <= places, "Embedding", "sequence.length",
           Joined{"at most places = ", places, extra.length > 0 ? "" : " (0: all items are one sequence)"},
           extra.of(items));
  }

  template <class T, class B, class Step = functor::NoStep<T>>
  void forward(typename B::Context& ctx, const Params<T, B>& p, In<Index, 1, B> x, Out<T, 2, B> u, Nothing<T, B>&,
               const NonDeduced<Sequence<T, B>>& extra = {}, const Step& step = {}) const {
    const auto here = ctx.here();
    expect_forward("Embedding.forward", *this, p, x, "u", u, extra);
    for_rows(ctx, u, functor::TakeById<T, B>{x, p.weight, p.place, extra.of(x.extent(0)), u}, step);
  }
  template <class T, class B>
  void backward(typename B::Context& ctx, const Params<T, B>& p, In<Index, 1, B> x, const Nothing<T, B>&,
                In<T, 2, B> du, Nothing<T, B> dx, Params<T, B>& grads, const NonDeduced<Sequence<T, B>>& extra,
                Nothing<T, B>&) const {
    const auto here = ctx.here();
    expect_backward("Embedding.backward", *this, p, x, du, dx, grads, extra);
    if (!grads.weight.is_skipped()) {
      if (!sparse) grads.weight.touch_all();
      auto mark = ctx.mark();
      auto offsets = ctx.template scratch<Index>(vocabulary + 1), order = ctx.template scratch<Index>(x.extent(0));
      B::group_by(ctx, x, offsets, order);
      B::for_rows(ctx, x.extent(0), functor::AddById<T, B>{x, offsets, order, du, grads.weight.rows()});
    }
    if (places > 0 && !grads.place.is_skipped()) {
      const Index length = extra.of(x.extent(0));
      B::for_rows(ctx, length, functor::AddByPlace<T, B>{du, length, grads.place});
    }
  }
};

namespace functor {

/// Writes the embedding of item n: the table row of its id, plus the row of its position if there are learned
/// positions: y[n] = weight[id[n]] + place[n mod length].
template <class T, class B>
struct TakeById {
  View<const Index, 1, B> id;
  View<const T, 2, B> weight, place;
  Index length;
  View<T, 2, B> y;

  GATEFOLD_HD void operator()(const auto& lanes, Index n) const {
    const Index v = from_first(lanes, [&] { return id(n); });
    GATEFOLD_ASSERT(0 <= v && v < weight.extent(0), "Embedding: id out of range");
    const Index columns = y.extent(1);
    const T* from = weight.data() + v * columns;
    T* to = y.data() + n * columns;
    if (place.extent(0) > 0) {
      const T* plus = place.data() + n % length * columns;
      each_column<T>(lanes, columns,
                     [&](auto at, Index j) { at.store(to + j, at.load(from + j) + at.load(plus + j)); });
    } else {
      each_column<T>(lanes, columns, [&](auto at, Index j) { at.store(to + j, at.load(from + j)); });
    }
  }
};
/// Adds up the gradients of all items n with the same id v: dweight[v] += Σ dy[n], in the order of the items. The call
/// for the first item of an id computes the whole sum, and the other calls return at once. A row of a sparse gradient
/// is marked as written only if a value other than 0 was added to it. Items with a negative id are left out.
template <class T, class B>
struct AddById {
  // The items with id v are order[offsets[v]], order[offsets[v] + 1], …, order[offsets[v + 1] − 1].
  View<const Index, 1, B> id, offsets, order;
  View<const T, 2, B> dy;
  TableRows<T> dweight;
  Index first = 0;  // the columns `first`, first + 1, … of dy are added to dweight

  GATEFOLD_HD void operator()(const auto& lanes, Index n) const {
    const Index v = from_first(lanes, [&] { return id(n); });
    if (v < 0) return;
    const Index begin = from_first(lanes, [&] { return offsets(v); });
    if (from_first(lanes, [&] { return order(begin); }) != n) return;
    const Index end = from_first(lanes, [&] { return offsets(v + 1); }), columns = dweight.columns,
                stride = dy.extent(1);
    const T* from = dy.data() + first;
    T* to = dweight.data + v * columns;
    const T size = sum_columns<T>(lanes, columns, [&](auto at, Index j) {
      using functor::math::abs;
      auto sum = at.load(from + n * stride + j);
      for (Index i = begin + 1; i < end; ++i) sum += at.load(from + order(i) * stride + j);
      at.store(to + j, at.load(to + j) + sum);
      return abs(sum);
    });
    if (lanes.lane == 0 && !(size == 0)) dweight.marks[v] = 1;
  }
};
/// Adds the gradients of all items at position l of their sequences to the gradient of the position: dplace[l] += Σ
/// dy[n] over n = l, l + length, …, in this order.
template <class T, class B>
struct AddByPlace {
  View<const T, 2, B> dy;
  Index length;
  View<T, 2, B> dplace;

  GATEFOLD_HD void operator()(const auto& lanes, Index l) const {
    const Index columns = dplace.extent(1);
    T* to = dplace.data() + l * columns;
    each_column<T>(lanes, columns, [&](auto at, Index j) {
      typename decltype(at)::Value sum(T(0));
      for (Index n = l; n < dy.extent(0); n += length) sum += at.load(dy.data() + n * columns + j);
      at.store(to + j, at.load(to + j) + sum);
    });
  }
};

}  // namespace functor

}  // namespace gatefold
