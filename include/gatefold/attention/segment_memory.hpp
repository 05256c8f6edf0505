#pragma once

#include <utility>

#include "gatefold/attention/window.hpp"
#include "gatefold/backend/elementwise.hpp"
#include "gatefold/policy/options.hpp"
#include "gatefold/tensor/expect_shape.hpp"

/// The memory of a RelativeAttention. It holds items (tokens) of earlier segments of a text. The caller owns the
/// memory. The attention reads `past` and writes `next`. Decoders use a KvCache instead (kv_cache.hpp).
namespace gatefold {

template <class T, class B>
struct AttentionMemory;

/// The size of a SegmentMemory.
struct MemorySize {
  Index layers = 1, sequences = 1;
  Index width = 0;  // values of a remembered row: D for items, 2·D for keys and values
  Index most = 0;   // largest number of remembered items of each sequence; attention.remembers() returns this number
};

/// Owns the items that the layers of a stack remember from segment to segment:
///
///     SegmentMemory<float, Cpu> memory(ctx, {.layers = 6, .sequences = 4, .width = 512, .most = 1024});
///     for (…) { trainer.step(x, target, {.length = 64, .memory = memory.of(64)});  memory.advance(); }
///
/// The memory has two buffers, which only advance() exchanges. A segment can therefore be run again before advance().
///
/// The memory also remembers the mask of the items (`valid` of the segments). If sequence s ends and a different
/// sequence takes its place, write 0 to the mask of s in next_valid, after the segment has run and before advance().
/// next_valid is a view in the result of of(). It has P' entries for each sequence, so the mask of s has the entries
/// [s·P', (s + 1)·P'). Use the earlier result of of(), because another call of of() drops the contents of next_valid.
/// The old sequence then has no effect on any bit of the results of the new one.
/// @cost  memory for 2 · layers · sequences · most · width values, allocated by the constructor
template <class T, class B>
class SegmentMemory {
 public:
  /// Creates a memory without remembered items.
  /// @throws ArgumentError if a size is less than 1, or `most` is negative
  SegmentMemory(typename B::Context& ctx, const MemorySize& size) : size_(size) {
    expect_sizes("SegmentMemory", {{"layers", size.layers}, {"sequences", size.sequences}, {"width", size.width}});
    expect(size.most >= 0, "SegmentMemory", "most", "at least 0", size.most);
    const auto here = ctx.here();
    for (auto* kept : {&past_, &next_}) resize(*kept, size.most);
    resize(past_, 0);
  }

  /// Starts new sequences without remembered items, or with `zeros` rows of zeros for each sequence. The reference code
  /// of papers 001 and 002 starts with `most` rows of zeros, to which items attend as to any other keys.
  /// @throws ArgumentError unless 0 <= zeros <= most
  void begin(typename B::Context& ctx, Index zeros = 0) {
    const auto here = ctx.here();
    expect(zeros >= 0 && zeros <= size_.most, "SegmentMemory.begin", "zeros", Joined{"0 to ", size_.most}, zeros);
    resize(past_, zeros);
    position_ = 0;
    fill(ctx, past_.rows.view(), 0);
    fill(ctx, past_.valid.view(), 1);
  }
  /// Returns the number of items of each sequence that the memory holds now.
  Index items() const { return past_.valid.size() / size_.sequences; }
  /// Returns the views of this memory that a model takes as extra input, for a segment of `length` items in each
  /// sequence.
  AttentionMemory<T, B> of(Index length) {
    next_position_ = position_ + length;
    const Index all = items() + length;
    resize(next_, all < size_.most ? all : size_.most);
    return {std::as_const(past_.rows).view(),
            next_.rows.view(),
            std::as_const(past_.valid).view(),
            next_.valid.view(),
            size_.sequences,
            position_};
  }
  /// Makes the rows that the segment wrote (`next`) the remembered rows (`past`) of the next segment. Call it after
  /// each segment.
  void advance() {
    std::swap(past_, next_);
    position_ = next_position_;
  }

 private:
  struct Kept {
    Tensor<T, 3, B> rows;   // [layers, S·P, W] rows of P items of each of S sequences
    Tensor<T, 1, B> valid;  // [S·P] mask: 1 = item, 0 = padding
  };
  void resize(Kept& kept, Index items) {
    kept.rows.resize(size_.layers, size_.sequences * items, size_.width);
    kept.valid.resize(size_.sequences * items);
  }

  MemorySize size_;
  Kept past_, next_;
  Index position_ = 0, next_position_ = 0;  // positions of the first items of this and the next segment
};

/// The items of earlier segments that each layer of a stack remembers, sequence by sequence. It is an extra input with
/// views of memory that the caller owns (SegmentMemory). A row has W values: the item as the layer received it (W = D),
/// or its keys and values (W = 2·D). To remember keys and values saves work, but they are valid only if the parameters
/// do not change between segments.
template <class T, class B>
struct AttentionMemory {
  View<const T, 3, B> past{};  // [layers, S·P, W] last P items of each of S sequences; empty: none
  View<T, 3, B> next{};        // [layers, S·P', W] out: becomes `past` for the next segment; empty: not written
  // Masks of the remembered rows: 1 for items, 0 for padding. They are the same for every layer.
  View<const T, 1, B> valid{};  // [S·P] mask of `past`; empty: no padding
  View<T, 1, B> next_valid{};   // [S·P'] out: mask of `next`
  Index sequences = 0;          // number of sequences; 0: the number of sequences of the segment
  Index position = 0;           // position of the first item of the segment in its sequence

  /// Returns the part of the memory that belongs to layer l of a stack.
  /// @throws ArgumentError if the memory has no layer l
  AttentionMemory at(Index l) const {
    const auto of_layer = [&](const auto& all) {
      expect(!all.data() || l < all.extent(0), "AttentionMemory.at", "memory",
             Joined{"at least ", l + 1, " layers, because a layer with index ", l, " reads it"}, all.extent(0));
      return rows_if_any(all, l, 1);
    };
    return {of_layer(past), of_layer(next), valid, next_valid, sequences, position};
  }
  /// Returns the number of remembered items of each sequence, if the memory holds `count` sequences.
  Index items(Index count) const { return past.data() && count > 0 ? past.extent(1) / count : 0; }
  Index width() const { return past.data() ? past.extent(2) : next.extent(2); }

  /// Checks the memory of one layer.
  /// @param padded  whether some items are padding
  /// @throws ArgumentError unless all of these conditions are met:
  ///         - the number of sequences is `count`
  ///         - past and next have the numbers of rows that `window` requires
  ///         - the rows of past and next have the same width: `model_dim` or, only if `wide` is true, 2 · model_dim
  ///         - past and next do not overlap
  ///         - each mask has one entry for each remembered item
  ///         - next_valid is given if `padded` is true and next is given
  void validate(const char* where, const detail_::attending::Window& window, Index count, Index model_dim, bool wide,
                bool padded) const {
    expect(sequences == 0 || sequences == count, where, "memory",
           Joined{"memory of ", count, " sequences (items / length of the segment)"}, Joined{"memory of ", sequences});
    const auto expect_rows = [&](const char* name, const auto& view, Index items) {
      if (!view.data()) return;
      expect(view.extent(0) >= 1, where, name, "at least 1 layer", view.extent(0));
      expect(view.extent(1) == count * items, where, name,
             Joined{count * items, " rows (", items, " for each sequence)"}, view.extent(1));
      expect(view.extent(2) == model_dim || (wide && view.extent(2) == 2 * model_dim), where, name,
             Joined{"rows of ", model_dim,
                    wide ? " values (items) or twice as many (keys and values)" : " values (items)"},
             Joined{"rows of ", view.extent(2)});
    };
    expect(window.past <= window.most(), where, "memory.past",
           Joined{"at most ", window.most(), " items for each sequence"}, window.past);
    expect_rows("memory.past", past, window.past);
    expect_rows("memory.next", next, window.remembered());
    if (valid.data()) expect_shape(where, "memory.valid", valid, {count * window.past});
    if (next_valid.data()) expect_shape(where, "memory.next_valid", next_valid, {count * window.remembered()});
    expect(!padded || next.extent(1) == 0 || next_valid.data(), where, "memory.next_valid",
           "a mask, because memory.next is given and some items are padding", "no mask");
    expect_apart(where, "memory.next", next, "memory.past", past);
    if (past.data() && next.data())
      expect(past.extent(2) == next.extent(2), where, "memory.next",
             Joined{"rows of ", past.extent(2), " values, as in memory.past"}, Joined{"rows of ", next.extent(2)});
  }
};

namespace functor {

/// Puts the rows of remembered items before the rows of the current segment. Sequence g has P remembered items, L
/// current items and K = P + L keys. For j < P, to[g·K + j,:] = past[g·P + j, column …]. For j >= P, to[g·K + j,:] =
/// now[g·L + j − P,:].
template <class T, class B>
struct JoinPast {
  detail_::attending::Window window;
  Index column;
  View<const T, 2, B> past, now;
  View<T, 2, B> to;

  GATEFOLD_HD void operator()(const auto& lanes, Index row) const {
    const Index g = row / window.keys(), j = row % window.keys();
    const T* const from = j < window.past ? past.data() + (g * window.past + j) * past.extent(1) + column
                                          : now.data() + (g * window.length + j - window.past) * now.extent(1);
    each_column<T>(lanes, to.extent(1), [&](auto at, Index c) { at.store(&to(row, c), at.load(from + c)); });
  }
};
/// For each sequence g, copies the rows of the last `count` of its K keys: to[g·count + j, column …] = from[g·K + K −
/// count + j,:].
template <class T, class B>
struct LastRows {
  detail_::attending::Window window;
  Index count, column;
  View<const T, 2, B> from;
  View<T, 2, B> to;

  GATEFOLD_HD void operator()(const auto& lanes, Index row) const {
    const Index keys = window.keys(), g = row / count, j = row % count;
    const T* const last = from.data() + (g * keys + keys - count + j) * from.extent(1);
    each_column<T>(lanes, from.extent(1), [&](auto at, Index c) { at.store(&to(row, column + c), at.load(last + c)); });
  }
};

/// Puts the mask of remembered items before the mask of the current segment. Sequence g has P remembered items, L
/// current items and K = P + L keys. For j < P, to[g·K + j] = past[g·P + j]. For j >= P, to[g·K + j] = now[g·L + j −
/// P]. If a mask is empty, its values count as 1.
template <class T, class B>
struct JoinValid {
  detail_::attending::Window window;
  View<const T, 1, B> past, now;
  View<T, 1, B> to;
  GATEFOLD_HD void operator()(Index i) const {
    const Index g = i / window.keys(), j = i % window.keys();
    const bool before = j < window.past;
    const View<const T, 1, B>& of = before ? past : now;
    to(i) = of.data() ? of(before ? g * window.past + j : g * window.length + j - window.past) : T(1);
  }
};
/// For each sequence g, copies the mask of the last `count` of its K keys: to[g·count + j] = from[g·K + K − count + j].
/// If there is no mask, writes 1.
template <class T, class B>
struct LastValid {
  detail_::attending::Window window;
  Index count;
  View<const T, 1, B> from;
  View<T, 1, B> to;
  GATEFOLD_HD void operator()(Index i) const {
    to(i) = from.data() ? from(i / count * window.keys() + window.keys() - count + i % count) : T(1);
  }
};
/// Adds the row of each item of the current segment to the row of its key. Sequence g has P remembered items, L current
/// items and K = P + L keys. Item t of the segment has row n = g·L + t of `from` and row g·K + P + t of `to`.
template <class T, class B>
struct AddOwnRows {
  detail_::attending::Window window;
  View<const T, 2, B> from;
  View<T, 2, B> to;

  GATEFOLD_HD void operator()(const auto& lanes, Index n) const {
    const Index row = window.own(n);
    each_column<T>(lanes, to.extent(1),
                   [&](auto at, Index c) { at.store(&to(row, c), at.load(&to(row, c)) + at.load(&from(n, c))); });
  }
};

}  // namespace functor

namespace detail_::attending {

/// Writes the rows of all keys of an attention to `to`: for each sequence the rows of remembered items from column
/// `column` on, then the rows `now` of the current segment.
template <class C, class T, class B>
void join_past(C& ctx, const Window& window, const AttentionMemory<T, B>& memory, Index column, In<T, 2, B> now,
               Out<T, 2, B> to) {
  const View<const T, 2, B> past(memory.past.data(), memory.past.extent(1), memory.past.extent(2));
  B::for_rows(ctx, to.extent(0), functor::JoinPast<T, B>{window, column, past, now, to});
}
/// Returns the rows of all keys of an attention (join_past): for each sequence the rows of remembered items, then the
/// rows `now` of the current segment. They are in scratch memory. If no items are remembered, returns `now`.
template <class C, class T, class B>
View<const T, 2, B> with_past(C& ctx, const Window& window, const AttentionMemory<T, B>& memory, Index column,
                              View<const T, 2, B> now) {
  if (window.past == 0) return now;
  auto joined = ctx.template scratch<T>(now.extent(0) / window.length * window.keys(), now.extent(1));
  join_past<C, T, B>(ctx, window, memory, column, now, joined);
  return joined;
}
/// Returns the mask of padding for the keys of S sequences [S · keys], which include remembered items. The mask is in
/// scratch memory if items are remembered, and empty if no mask is given.
template <class C, class T, class B>
View<const T, 1, B> valid_keys(C& ctx, const Window& window, const AttentionMemory<T, B>& memory, In<T, 1, B> valid,
                               Index sequences) {
  if (window.past == 0 || (!valid.data() && !memory.valid.data())) return valid;
  auto keys = ctx.template scratch<T>(sequences * window.keys());
  B::for_each(ctx, keys.size(), functor::JoinValid<T, B>{window, memory.valid, valid, keys});
  return keys;
}
/// Writes memory.next_valid, the mask of padding for the items that the next segment remembers, unless next_valid is
/// empty.
template <class C, class T, class B>
void remember_valid(C& ctx, const Window& window, const AttentionMemory<T, B>& memory, In<T, 1, B> keys) {
  if (!memory.next_valid.data()) return;
  B::for_each(ctx, memory.next_valid.size(),
              functor::LastValid<T, B>{window, window.remembered(), keys, memory.next_valid});
}
/// Copies the rows of the items that the next segment remembers from `keys` to memory.next, unless memory.next is
/// empty.
template <class C, class T, class B>
void remember(C& ctx, const Window& window, const AttentionMemory<T, B>& memory, Index column, In<T, 2, B> keys) {
  if (!memory.next.data() || memory.next.extent(1) == 0) return;
  const View<T, 2, B> next(memory.next.data(), memory.next.extent(1), memory.next.extent(2));
  B::for_rows(ctx, next.extent(0), functor::LastRows<T, B>{window, window.remembered(), column, keys, next});
}
/// Copies the rows of the current segment out of `keys`, which also has the rows of remembered items.
/// @param keys  [S · keys, W] in
/// @param own   [S · length, W] out
template <class C, class T, class B>
void own_rows(C& ctx, const Window& window, In<T, 2, B> keys, Out<T, 2, B> own) {
  B::for_rows(ctx, own.extent(0), functor::LastRows<T, B>{window, window.length, 0, keys, own});
}
/// Adds the rows `own` of the current segment to the rows of the same items in `keys`, which also has the rows of
/// remembered items.
template <class C, class T, class B>
void add_own_rows(C& ctx, const Window& window, In<T, 2, B> own, Out<T, 2, B> keys) {
  B::for_rows(ctx, own.extent(0), functor::AddOwnRows<T, B>{window, own, keys});
}
/// Returns the rows of the current segment, copied from `keys` to scratch memory. If no items are remembered, returns
/// `keys`, because it has no other rows.
template <class C, class T, class B>
View<const T, 2, B> without_past(C& ctx, const Window& window, View<const T, 2, B> keys) {
  if (window.past == 0) return keys;
  auto now = ctx.template scratch<T>(keys.extent(0) / window.keys() * window.length, keys.extent(1));
  own_rows<C, T, B>(ctx, window, keys, now);
  return now;
}

}  // namespace detail_::attending

}  // namespace gatefold
