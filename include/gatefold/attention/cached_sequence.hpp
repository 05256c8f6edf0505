#pragma once

#include "gatefold/attention/attend_window.hpp"
#include "gatefold/attention/kv_cache.hpp"
#include "gatefold/attention/window.hpp"
#include "gatefold/routing/sequence.hpp"

namespace gatefold {

/// The extra inputs of an attention with a KV cache: the length of the sequences, the mask of padding, and the cache
/// of the items before them.
template <class T, class B>
struct CachedSequence {
  Index length = 0;             // items of each sequence; 0: all items are one sequence
  View<const T, 1, B> valid{};  // [N] mask: 1 = item, 0 = padding; empty: no padding
  CacheView<T, B> cache{};      // empty: no item precedes this segment

  CachedSequence at(Index l) const { return {length, valid, cache.at(l)}; }
  /// Returns the number of sequences of `items` items.
  Index sequences(Index items) const { return length > 0 ? items / length : items > 0 ? 1 : 0; }
  Index of(Index items) const { return length > 0 ? length : items; }
  bool has_cache() const { return cache.rows.data() != nullptr; }
};

namespace detail_::attending {

/// Returns the window of keys to which the items of a segment attend: the last `width` keys, or all keys if width is 0.
/// If `chunked`, returns the keys of chunks of `width` positions.
/// @param position  position of the first item of the segment in its sequence
inline Window last_keys(Index length, Index past, Index width, bool chunked = false, Index position = 0) {
  return {length, past, width > 0 ? width : past + length + 1, true, chunked, position};
}
/// Checks the extra inputs of an attention.
/// @param items  number of items of the segment, over all sequences
/// @param parts  number of matrices that the cache must have for each sequence (CacheSize.parts)
/// @param row    number of values of a row of the cache
/// @param what   description of the values of a row, for the error message
/// @param width  width of the window; 0: all keys
/// @throws ArgumentError unless length, mask and cache fit
template <class T, class B>
void expect_cached(const char* where, const CachedSequence<T, B>& extra, Index items, Index parts, Index row,
                   const char* what, Index width) {
  Sequence<T, B>{extra.length, extra.valid}.validate(where, items);
  const Index count = extra.sequences(items);
  if (count == 0 || !extra.has_cache()) return;
  extra.cache.validate(where, count, extra.of(items), parts, row, what, width > 0 ? width - 1 : extra.cache.position);
}
/// Requires that a forward pass that keeps values for backward has no cache.
template <class T, class B>
void expect_no_cache(const char* where, const CachedSequence<T, B>& extra) {
  expect(!extra.has_cache(), where, "cache", "none, because keys of earlier segments have no gradients; use infer",
         "a cache");
}
/// Checks the extents of weight and bias of a linear map, given as an expert policy with one expert.
template <class LinearT, class P>
void expect_linear(const char* where, const char* weight, const char* bias, const LinearT& of, const P& params) {
  expect_shape(where, weight, params.weight, {1, of.in_dim(), of.out_dim()});
  expect_shape(where, bias, params.bias, {1, of.bias ? of.out_dim() : 0});
}

}  // namespace detail_::attending
}  // namespace gatefold
