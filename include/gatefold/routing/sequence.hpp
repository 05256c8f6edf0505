#pragma once

#include <concepts>

#include "gatefold/policy/hooks.hpp"
#include "gatefold/tensor/expect_shape.hpp"

namespace gatefold {

/// Describes how the items of a batch form sequences of `length` consecutive items, and which items are padding. If
/// `length` is 0, all items are one sequence. Sequence is the extra input of attention and of policies that mix items.
template <class T, class B>
struct Sequence {
  Index length = 0;
  View<const T, 1, B> valid{};  // [N] 1 for an item, 0 for padding; if empty, there is no padding

  /// Returns a Sequence with the same length. Its mask of padding is `valid`, or `mask` if `valid` is empty.
  Sequence with_valid(View<const T, 1, B> mask) const { return {length, valid.data() ? valid : mask}; }

  /// Returns the number of items of each sequence, for a batch of `items` items.
  Index of(Index items) const { return length > 0 ? length : items; }

  /// Checks that the length of the sequences and the mask of padding fit a batch of `items` items.
  /// @throws ArgumentError unless `length` is 0 or divides the number of items, and `valid` is empty or has one entry
  ///         per item
  void validate(const char* where, Index items) const {
    expect(length >= 0, where, "sequence.length", "at least 0", length);
    expect(length == 0 || items % length == 0, where, "sequence.length",
           Joined{"a divisor of the number of items ", items}, length);
    if (valid.data()) expect_shape(where, "sequence.valid", valid, {items});
  }
};

namespace functor {

/// Copies items and sets padding to 0: kept[n,:] = x[n,:], or 0 if row n is padding, even if x[n,:] has NaN.
template <class T, class B>
struct KeepValid {
  View<const T, 2, B> x;
  View<const T, 1, B> valid;
  View<T, 2, B> kept;
  GATEFOLD_HD void operator()(Index i) const { kept.data()[i] = valid(i / x.extent(1)) != 0 ? x.data()[i] : T(0); }
};

}  // namespace functor

/// Returns the items x with padding set to 0. The result is in scratch memory, so the caller must hold a mark
/// (`ctx.mark()`, the scope of such memory). If `valid`, the mask of padding, is empty, returns x.
template <class T, class B>
View<const T, 2, B> without_padding(typename B::Context& ctx, In<T, 2, B> x, In<T, 1, B> valid) {
  if (valid.empty()) return x;
  auto kept = ctx.template scratch<T>(x.extent(0), x.extent(1));
  B::for_each(ctx, x.size(), functor::KeepValid<T, B>{x, valid, kept});
  return kept;
}

/// Adds a mask of padding to the extra inputs of a call: returns `extra.with_valid(mask)` if E has this function, and
/// `extra` otherwise. Gates call it to pass their mask to their parts.
template <class E, class V>
E with_valid(const E& extra, const V& mask) {
  if constexpr (detail_::hook::extra::with_valid<const E, const V>()) {
    return extra.with_valid(mask);
  } else {
    return extra;
  }
}

}  // namespace gatefold
