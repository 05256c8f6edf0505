#pragma once

#include <type_traits>
#include <utility>

#include "gatefold/attention/attend_window.hpp"
#include "gatefold/backend/elementwise.hpp"
#include "gatefold/policy/options.hpp"
#include "gatefold/routing/sequence.hpp"

/// The KV cache of a decoder: keys and values of the earlier items (tokens) of each sequence. An attention writes the
/// rows of the current items after the rows of the earlier items. All attentions read the rows in place, except
/// LatentAttention, which copies them unless its option `expanded_cache` is true.
namespace gatefold {

/// Owns the keys and values of the earlier items of each sequence (KV cache), for all layers of a decoder:
///
///     KvCache<float, Cpu> cache(ctx, sizes.cache(1, 2048));  // one sequence of up to 2048 tokens
///     for (…) { infer(…, extra_of<…>(Segment<float, Cpu>{.length = n, .cache = cache.of(n)}));  cache.advance(); }
///
/// Each layer writes only the rows of the current items. A segment can be run again before advance(). All sequences
/// have the same number of items. Put padding before the items of a shorter prompt, not after them, because padding
/// also takes positions. After the items, it would increase their distance to the next items. If sequence s ends and a
/// different sequence takes its place, call forget(s). The new sequence begins at the present position. Unless
/// CacheSize::keep is given, it therefore has room for only `longest` − items() items. If CacheSize::absolute is true,
/// forget() throws ArgumentError; use one cache for each sequence instead. The context must outlive the cache.
/// @cost  CacheSize::size() values. If `keep` is given, a segment of `length` items that does not fit next to the kept
///        items makes the cache grow to 2 · keep + length rows per sequence and matrix. With segments of one item, the
///        kept rows are copied about once in `keep` segments
template <class T, class B>
class KvCache;
template <class T, class B>
struct CacheView;

/// The size of a KvCache. DecoderSizes::cache and the functions `cache` of the attentions return it.
struct CacheSize {
  Index layers = 1, sequences = 1;
  // Number of matrices (parts) of each sequence in a layer. An attention has one matrix for the keys and one for the
  // values of each head, or only one matrix in total.
  Index parts = 1;
  Index width = 0;    // number of values of a row of a matrix
  Index longest = 0;  // largest number of items of a sequence
  // If > 0, only the last `keep` items of a sequence are kept, and a sequence can have more than `longest` items.
  Index keep = 0;
  // True if results depend on absolute positions, not only on distances between items (attention in chunks, query
  // temperature).
  bool absolute = false;

  /// Returns the number of rows that a KvCache first allocates for each sequence, in each matrix.
  Index capacity() const { return keep > 0 && 2 * keep < longest ? 2 * keep : longest; }
  /// Returns the number of values that a KvCache first allocates.
  Index size() const { return layers * sequences * parts * capacity() * width; }
};

namespace detail_::attending {

/// Maps row n of a matrix with `length` rows for each sequence to the row of the same item in a part of a KV cache. The
/// first item of a sequence has row `first` of the `capacity` rows of the sequence.
struct CachePlaces {
  Index length, capacity, first;
  GATEFOLD_HD Index operator()(Index n) const { return n / length * capacity + first + n % length; }
};

}  // namespace detail_::attending

GATEFOLD_FUNCTORS((class T, class B), CopyCached);

template <class T, class B>
class KvCache {
 public:
  /// Creates an empty cache.
  /// @throws ArgumentError unless all sizes are at least 1, except `keep`, which is at least 0
  KvCache(typename B::Context& ctx, const CacheSize& size) : ctx_(&ctx), size_(size) {
    expect_sizes("KvCache", {{"layers", size.layers},
                             {"sequences", size.sequences},
                             {"parts", size.parts},
                             {"width", size.width},
                             {"longest", size.longest}});
    expect(size.keep >= 0, "KvCache", "keep", "at least 0", size.keep);
    allocate(size.capacity());
  }
  /// Removes all items.
  void begin() { first_ = items_ = position_ = next_ = 0; }
  /// Removes the items of sequence s. Results for later items then do not depend on them.
  /// @throws ArgumentError unless 0 <= s < sequences, and if `absolute` is true
  void forget(Index s) {
    expect(!size_.absolute, "KvCache.forget", "absolute",
           "false, because chunks and temperatures depend on the position from the begin of a sequence; use one cache "
           "for each sequence",
           "true");
    expect(0 <= s && s < size_.sequences, "KvCache.forget", "s", Joined{"0 to ", size_.sequences - 1}, s);
    const auto here = ctx_->here();
    fill(*ctx_, valid_.view().rows(s * capacity_, capacity_), 0);
  }
  /// Returns the number of items of each sequence that the cache holds now.
  Index items() const { return items_; }
  /// Returns the views that a model takes as extra input, for a segment of `length` items in each sequence.
  /// @throws ArgumentError unless length >= 1 and the cache has room for the items
  CacheView<T, B> of(Index length) {
    expect(length >= 1, "KvCache.of", "length", "at least 1", length);
    expect(size_.keep > 0 || position_ + length <= size_.longest, "KvCache.of", "length",
           Joined{"at most ", size_.longest - position_, ", because a sequence has at most ", size_.longest, " items"},
           length);
    if (first_ + items_ + length > capacity_) move_to_front(length);
    next_ = length;
    return {rows_.view(), valid_.view(), size_.sequences, capacity_, first_, items_, position_};
  }
  /// This conversion does not compile. It exists only for its error message: the views depend on the length of the
  /// segment, so call of(length).
  template <class V, class = std::enable_if_t<std::is_same_v<V, CacheView<T, B>>>>
  operator V() const {
    GATEFOLD_REQUIRE((!std::is_same_v<V, CacheView<T, B>>),
                     "gatefold: a segment of `length` items takes cache.of(length), not the KvCache itself: "
                     "{.length = length, .cache = cache.of(length)}; see docs/tutorials/own_program.md");
    return {};
  }
  /// Adds the items of the segment for which `of` was last called. Call advance() after each segment.
  void advance() {
    position_ += next_;
    items_ += next_;
    next_ = 0;
    if (size_.keep == 0 || items_ <= size_.keep) return;
    first_ += items_ - size_.keep;
    items_ = size_.keep;
  }

 private:
  void allocate(Index capacity) {
    const auto here = ctx_->here();
    capacity_ = capacity;
    rows_ = Tensor<T, 3, B>(size_.layers, size_.parts * size_.sequences * capacity, size_.width);
    valid_ = Tensor<T, 1, B>(size_.sequences * capacity);
    fill(*ctx_, rows_.view(), 0);
  }
  /// Copies the rows of the items to the front of each part. If `length` more items do not fit, allocates larger
  /// buffers first.
  void move_to_front(Index length) {
    const auto here = ctx_->here();
    const detail_::attending::CachePlaces from{items_, capacity_, first_};
    Tensor<T, 3, B> rows;
    Tensor<T, 1, B> valid;
    const bool fits = items_ + length <= capacity_;
    if (!fits) {
      rows = std::move(rows_);
      valid = std::move(valid_);
      allocate(2 * size_.keep + length);
    }
    const View<T, 3, B> old = fits ? rows_.view() : rows.view();
    for (Index l = 0; l < size_.layers; ++l) move_rows(from, old.rows(l, 1), rows_.view().rows(l, 1));
    const View<T, 1, B> mask = fits ? valid_.view() : valid.view();
    move_rows(from, mask.as(1, mask.size(), 1), valid_.view().as(1, valid_.size(), 1));
    first_ = 0;
  }
  void move_rows(const detail_::attending::CachePlaces& from, View<T, 3, B> source, View<T, 3, B> target) {
    auto mark = ctx_->mark();
    const View<T, 2, B> all = source.as(source.extent(1), source.extent(2)),
                        kept = ctx_->template scratch<T>(all.extent(0) / from.capacity * items_, all.extent(1));
    const detail_::attending::CachePlaces to{items_, capacity_, 0};
    B::for_rows(*ctx_, kept.extent(0), functor::CopyCached<T, B>{from, false, all, kept});
    B::for_rows(*ctx_, kept.extent(0),
                functor::CopyCached<T, B>{to, true, kept, target.as(target.extent(1), target.extent(2))});
  }

  typename B::Context* ctx_;
  CacheSize size_;
  Tensor<T, 3, B> rows_;
  Tensor<T, 1, B> valid_;
  Index capacity_ = 0, first_ = 0, items_ = 0, position_ = 0, next_ = 0;
};

/// The rows of a KvCache as extra input of a model. A part is a matrix of a layer, for example the keys of one head
/// (CacheSize.parts). Each sequence has `capacity` rows in each part. Rows first … first + items − 1 of them belong to
/// earlier items. The attention writes the rows of the current items after these.
template <class T, class B>
struct CacheView {
  View<T, 3, B> rows{};   // [layers, parts · sequences · capacity, width]; empty: no cache
  View<T, 1, B> valid{};  // [sequences · capacity] mask of the rows: 1 = item, 0 = padding
  Index sequences = 0, capacity = 0;
  Index first = 0, items = 0;
  Index position = 0;  // position of the first current item in its sequence

  /// Returns the part of the cache that belongs to layer l of a stack.
  /// @throws ArgumentError if the cache has no layer l
  CacheView at(Index l) const {
    expect(!rows.data() || l < rows.extent(0), "CacheView.at", "cache",
           Joined{"at least ", l + 1, " layers, because a layer with index ", l, " reads it"}, rows.extent(0));
    CacheView of_layer = *this;
    of_layer.rows = rows_if_any(rows, l, 1);
    return of_layer;
  }
  /// Checks the cache of a layer for a segment.
  /// @param count   number of sequences
  /// @param length  number of items of each sequence in the segment
  /// @param parts   number of parts that the attention needs
  /// @param row     number of values of a row
  /// @param what    description of the values of a row, for the error message
  /// @param least   number of earlier items that the attention reads. If the sequence has fewer earlier items, the
  ///                attention reads all of them
  /// @throws ArgumentError if an extent is wrong, the cache has no room for the segment, or earlier items are missing
  void validate(const char* where, Index count, Index length, Index parts, Index row, const char* what,
                Index least) const {
    expect(sequences == count, where, "cache", Joined{"a cache of ", count, " sequences (items / length)"},
           Joined{"a cache of ", sequences});
    expect(rows.extent(2) == row, where, "cache", Joined{"rows of ", row, " values (", what, ")"},
           Joined{"rows of ", rows.extent(2)});
    expect(rows.extent(0) >= 1, where, "cache", "at least 1 layer", rows.extent(0));
    expect(
        rows.extent(1) == parts * count * capacity, where, "cache.rows",
        Joined{parts * count * capacity, " rows (", parts, " parts of ", count, " sequences with ", capacity, " rows)"},
        Joined{rows.extent(1), " rows"});
    expect(valid.size() == count * capacity, where, "cache.valid", Joined{count * capacity, " values"}, valid.size());
    expect(first >= 0 && items >= 0 && first + items + length <= capacity, where, "cache",
           Joined{"room for ", length, " items for each sequence"}, Joined{"room for ", capacity - first - items});
    expect(items >= (least < position ? least : position), where, "cache",
           Joined{"at least ", least < position ? least : position, " earlier items"}, items);
  }
};

namespace functor {

/// If `stores` is true, copies row n of a matrix to the row of the same item in a KV cache (CachePlaces). Otherwise,
/// copies the row of the cache to row n of the matrix.
template <class T, class B>
struct CopyCached {
  detail_::attending::CachePlaces places;
  bool stores;  // whether `to` is the cache; otherwise `from` is
  View<const T, 2, B> from;
  View<T, 2, B> to;
  GATEFOLD_HD void operator()(const auto& lanes, Index n) const {
    const Index cached = places(n);
    const T* const source = &from(stores ? n : cached, 0);
    T* const target = &to(stores ? cached : n, 0);
    each_column<T>(lanes, from.extent(1), [&](auto at, Index c) { at.store(target + c, at.load(source + c)); });
  }
};
/// Writes the mask of the current items to a KV cache: 1 = item, 0 = padding.
template <class T, class B>
struct CacheValid {
  detail_::attending::CachePlaces places;
  View<const T, 1, B> from;  // empty: no padding
  View<T, 1, B> to;
  GATEFOLD_HD void operator()(Index n) const { to(places(n)) = from.data() ? from(n) : T(1); }
};

}  // namespace functor

namespace detail_::attending {

/// Writes the mask `valid` of the current items, `length` for each sequence, to the cache.
template <class C, class T, class B>
void store_valid(C& ctx, const CacheView<T, B>& cache, In<T, 1, B> valid, Index length) {
  B::for_each(ctx, cache.sequences * length,
              functor::CacheValid<T, B>{{length, cache.capacity, cache.first + cache.items}, valid, cache.valid});
}
/// Writes the rows of the current items to a cache that has one matrix in each layer.
template <class C, class T, class B>
void store_rows(C& ctx, const CacheView<T, B>& cache, In<T, 2, B> rows) {
  B::for_rows(ctx, rows.extent(0),
              functor::CopyCached<T, B>{{rows.extent(0) / cache.sequences, cache.capacity, cache.first + cache.items},
                                        true,
                                        rows,
                                        cache.rows.as(cache.rows.extent(1), cache.rows.extent(2))});
}
/// Returns the first `count` rows of each sequence in a matrix of the cache, from the row of the first item on. The
/// result is in scratch memory, unless the cache has only one sequence.
/// @param all  [sequences · capacity, W] rows or masks of the cache
template <class C, class T, class B>
View<const T, 2, B> read_rows(C& ctx, const CacheView<T, B>& cache, View<const T, 2, B> all, Index count) {
  if (cache.sequences == 1) return all.rows(cache.first, count);
  const View<T, 2, B> rows = ctx.template scratch<T>(cache.sequences * count, all.extent(1));
  B::for_rows(ctx, rows.extent(0), functor::CopyCached<T, B>{{count, cache.capacity, cache.first}, false, all, rows});
  return rows;
}

}  // namespace detail_::attending

/// The extra inputs of an attention with a KV cache: the length of the sequences, the mask of padding, and the cache of
/// earlier items.
template <class T, class B>
struct CachedSequence {
  Index length = 0;             // items of each sequence; 0: all items are one sequence
  View<const T, 1, B> valid{};  // [N] mask: 1 = item, 0 = padding; empty: no padding
  CacheView<T, B> cache{};      // empty: no item precedes this segment

  CachedSequence at(Index l) const { return {length, valid, cache.at(l)}; }
  /// Returns the number of sequences into which `items` items are divided.
  Index sequences(Index items) const { return length > 0 ? items / length : items > 0 ? 1 : 0; }
  Index of(Index items) const { return length > 0 ? length : items; }
  bool has_cache() const { return cache.rows.data() != nullptr; }
};

namespace detail_::attending {

/// Returns the window of keys to which the items of a segment attend: the last `width` keys, or all keys if width is 0.
/// If `chunked`, positions are divided into chunks of `width`, and an item attends only to the keys of its own chunk up
/// to its own key.
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
/// @throws ArgumentError if the length, the mask or the cache does not match the items
template <class T, class B>
void expect_cached(const char* where, const CachedSequence<T, B>& extra, Index items, Index parts, Index row,
                   const char* what, Index width) {
  Sequence<T, B>{extra.length, extra.valid}.validate(where, items);
  const Index count = extra.sequences(items);
  if (count == 0 || !extra.has_cache()) return;
  extra.cache.validate(where, count, extra.of(items), parts, row, what, width > 0 ? width - 1 : extra.cache.position);
}
/// Checks that there is no cache. A forward pass that keeps values for backward cannot use one.
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
