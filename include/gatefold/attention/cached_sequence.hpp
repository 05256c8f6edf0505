#pragma once

#include "gatefold/attention/attend_window.hpp"
#include "gatefold/attention/kv_cache.hpp"
#include "gatefold/attention/window.hpp"
#include "gatefold/core/error.hpp"
#include "gatefold/core/types.hpp"
#include "gatefold/routing/sequence.hpp"
#include "gatefold/tensor/expect_shape.hpp"
#include "gatefold/tensor/view.hpp"

namespace gatefold {

/// The extra inputs of an attention with a KV cache: the length of the sequences, the mask of padding, and the memory
/// of the items before them.
template <class T, class B>
struct CachedSequence {
  Index length = 0;                // items of each sequence; 0: all are one
  View<const T, 1, B> valid{};     // [N] mask: 1 = item, 0 = padding; empty: no padding
  AttentionMemory<T, B> memory{};  // empty: no item precedes this segment

  CachedSequence at(Index l) const { return {length, valid, memory.at(l)}; }
  /// Returns the number of sequences of `items` items.
  Index sequences(Index items) const { return length > 0 ? items / length : items > 0 ? 1 : 0; }
  Index of(Index items) const { return length > 0 ? length : items; }
  bool has_memory() const { return memory.past.data() || memory.next.data(); }
};

namespace detail_::attending {

/// Returns the window of the keys of a segment: the last `width` keys, or all keys if width is 0.
inline Window last_keys(Index length, Index past, Index width) {
  return {length, past, width > 0 ? width : past + length + 1};
}
/// Returns the keys that the memory of an attention with a window of `width` keys holds: those of the window, or all.
template <class T, class B>
Window held_keys(const CachedSequence<T, B>& extra, Index items, Index width) {
  const Index count = extra.sequences(items), past = extra.memory.items(count);
  const Window least = last_keys(extra.of(items), past, width);
  const bool fits =
      past <= least.most() && (!extra.memory.next.data() || extra.memory.next.extent(1) == count * least.remembered());
  return fits ? least : last_keys(extra.of(items), past, 0);
}
/// Returns the input of the functions in attend_window.hpp. The mask may be in scratch memory, so take a mark first.
template <class C, class T, class B>
WindowForm<T, B> cached_form(C& ctx, const CachedSequence<T, B>& extra, Index items, Index heads, double scale,
                             Index width) {
  const Index count = extra.sequences(items);
  const Window seen = last_keys(extra.of(items), extra.memory.items(count), width);
  return {.window = seen,
          .heads = heads,
          .scale = scale,
          .valid = valid_keys<C, T, B>(ctx, seen, extra.memory, extra.valid, count)};
}

/// Checks the extra inputs of an attention.
/// @param row   the number of values of a row of the memory, and what they are
/// @param width  width of the window; 0: all keys
template <class T, class B>
void expect_cached(const char* where, const CachedSequence<T, B>& extra, Index items, Index row, const char* what,
                   Index width) {
  Sequence<T, B>{extra.length, extra.valid}.validate(where, items);
  const Index count = extra.sequences(items);
  if (count == 0 || !extra.has_memory()) return;
  expect(extra.memory.width() == row, where, "memory", Joined{"rows of ", row, " values (", what, ")"},
         Joined{"rows of ", extra.memory.width()});
  extra.memory.validate(where, held_keys(extra, items, width), count, row, false,
                        extra.valid.data() || extra.memory.valid.data());
}
/// Requires that a forward pass whose values are kept for backward has no memory.
template <class T, class B>
void expect_no_memory(const char* where, const CachedSequence<T, B>& extra) {
  expect(!extra.has_memory(), where, "memory", "none, because keys of earlier segments have no gradients; use infer",
         "a memory");
}
/// Checks the extents of weight and bias of a linear map, given as an expert policy with one expert.
template <class LinearT, class P>
void expect_linear(const char* where, const char* weight, const char* bias, const LinearT& of, const P& params) {
  expect_shape(where, weight, params.weight, {1, of.in_dim(), of.out_dim()});
  expect_shape(where, bias, params.bias, {1, of.bias ? of.out_dim() : 0});
}

}  // namespace detail_::attending
}  // namespace gatefold
