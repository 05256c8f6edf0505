#pragma once

#include <limits>

#include "gatefold/attention/attend.hpp"
#include "gatefold/backend/drop.hpp"
#include "gatefold/backend/groups.hpp"
#include "gatefold/backend/math.hpp"
#include "gatefold/policy/noise.hpp"

/// Computes multi-head attention in which item i attends only to a window (window.hpp), which begins with key first(i).
/// The caller computes the projections. Each place o in the window can have a position key e_o:
///
///     A_h[i,o] = softmax_o(scale · ⟨q_h,i, k_h,first(i)+o + e_o⟩) over the keys that exist              (1)
///     context[i] = concat_h Σ_o ξ[i,h,o] A_h[i,o] v_h,first(i)+o                                        (2)
///
/// q, k and v are queries, keys and values of head h. All heads share the position keys e, which can be absent. ξ drops
/// probabilities at random (functor::Drop); without dropout it is 1. Padding attends to no keys, and no item attends to
/// padding. The context of an item without any key is 0. Scores are computed block by block. Backward computes them
/// again.
/// @cost   forward 4·N·W·D flop for the keys, and 2·N·W·D for position keys. Backward 10·N·W·D flop for the keys, and
///         6·N·W·D for position keys. W, the number of keys of a block, is the width of the window + the rows of a
///         block. Scratch for the scores of the blocks, and for a few copies of q, k and v of those sequences that are
///         computed at the same time; no N × W matrix
/// @order  an item uses its keys in ascending order and in one block. No bit of the results of forward for an item
///         depends on later items or other sequences. For windows of up to 128 keys, no such bit depends on where the
///         caller divides a sequence into segments. In forward, an item with NaN affects only items that attend to it.
///         In backward, the values of padding must be finite
namespace gatefold {

GATEFOLD_FUNCTORS((class T, class B), DropWindow);

namespace detail_::attending {

/// The mask of a block for functor::SoftmaxBlock: which keys of the block each row attends to. These keys are a range
/// of columns, given by the window of the row's item. `seen` returns each score unchanged, because WindowScores has
/// already replaced the scores of padding.
template <class T, class B>
struct WindowMask {
  Window window;
  // [S · keys] An item is padding and attends to no keys if the value of its own key is 0 or negative. Empty if there
  // is no padding.
  View<const T, 1, B> keys{};

  GATEFOLD_HD static Index item(const Block& block, Index row) { return block.row + row; }
  GATEFOLD_HD Index first(const Block& block, Index row) const { return window.seen(block, item(block, row)).first; }
  GATEFOLD_HD Index count(const Block& block, Index row) const {
    const Index i = item(block, row);
    return keys.data() && keys(window.own(i)) <= 0 ? 0 : window.seen(block, i).count;
  }
  template <class A, class V>
  GATEFOLD_HD static V seen(const A&, Index, Index, V score) {
    return score;
  }
};

/// The options of an attention to a window of preceding items, with its dropout and its mask of padding.
template <class T, class B>
struct WindowForm {
  Window window;
  Index heads;
  double scale;
  View<const T, 2, B> relative{};  // [width, D/H] position keys of the window; empty: none
  double rate = 0;                 // dropout rate of the attention weights
  Noise noise{};                   // random numbers of dropout; empty: no dropout
  View<const T, 1, B> valid{};     // [S · keys] mask of S sequences: 1 = item, 0 = padding; empty: no padding

  bool drops() const { return rate > 0 && noise.random.has_value(); }
};

/// The sequences [first, first + count) of a call of an attention with a window. `items` and `keys` return the rows of
/// a view that belong to these sequences: `items` for views with one row per item, `keys` for views with one row per
/// key.
template <class T, class B>
struct WindowPart {
  WindowForm<T, B> form;
  Index first, count;
  Window window = form.window;
  HeadRows of_items{form.heads, window.length}, of_keys{form.heads, window.keys()};

  template <class V>
  V items(const V& all) const {
    return rows_if_any(all, first * window.length, count * window.length);
  }
  template <class V>
  V keys(const V& all) const {
    return rows_if_any(all, first * window.keys(), count * window.keys());
  }
  Keys<T, B> clean_keys(auto& ctx, View<const T, 2, B> values) const {
    return {ctx, keys(form.valid), values, of_keys};
  }
  WindowMask<T, B> mask(const Keys<T, B>& clean) const {
    return {window, form.valid.data() ? View<const T, 1, B>(clean.mask) : View<const T, 1, B>{}};
  }
  template <class F>
  void for_each_block(const F& f) const {
    for_each_window_block(window, count * form.heads, f);
  }
  void drop(auto& ctx, const Block& block, View<T, 2, B> w) const {
    if (!form.drops()) return;
    const Index first_item = first * window.length;
    B::for_rows(ctx, block.all_rows(),
                functor::DropWindow<T, B>{window, block, of_items, first_item, {*form.noise.random, form.rate}, w});
  }
};

/// Divides the sequences of an attention call into parts, which different threads can compute. A part is one long
/// sequence, or several short sequences whose scores, with all heads, fit in one block.
struct WindowParts {
  Index sequences, each, count;

  WindowParts(const Window& window, Index heads, Index items) : sequences(items / window.length) {
    const Index together = BlockSize{}.rows * BlockSize{}.keys / (window.length * window.keys() * heads);
    each = together > 0 ? together : 1;
    count = divide_up(sequences, each);
  }
  /// Calls f(context, part, number of the part) for each part. Several parts can run at the same time.
  template <class C, class T, class B, class F>
  void for_each(C& ctx, const WindowForm<T, B>& form, const F& f) const {
    B::for_tasks(ctx, count, [&](C& own, Index first, Index tasks) {
      for (Index number = first; number < first + tasks; ++number) {
        auto mark = own.mark();
        const Index begin = number * each, left = sequences - begin;
        f(own, WindowPart<T, B>{form, begin, left < each ? left : each}, number);
      }
    });
  }
};

/// Computes multi-head attention to a window of preceding items, equations (1) and (2) of this header.
/// @param q  [N, D] in, the queries of S sequences
/// @param k, v  [S · keys, D] in, the keys and values; in each sequence, the rows of remembered items (of earlier
///              segments) come first
/// @param context  [N, D] out
/// @param log_sum_exp  [N, heads] out, the log-sum-exp of the scores of each item and head
/// @param entropy  [N, heads] out, the entropy of the attention weights of each item and head; if empty, it is not
///                 computed
template <class C, class T, class B>
void forward(C& ctx, const WindowForm<T, B>& form, In<T, 2, B> q, In<T, 2, B> k, In<T, 2, B> v, Out<T, 2, B> context,
             Out<T, 2, B> log_sum_exp, Out<T, 2, B> entropy) {
  if (q.extent(0) == 0) return;
  WindowParts(form.window, form.heads, q.extent(0))
      .for_each(ctx, form, [&](C& own, const WindowPart<T, B>& part, Index) {
        const View<const T, 2, B> queries = split_heads(own, part.of_items, part.items(q)),
                                  keys = split_heads(own, part.of_keys, part.keys(k)),
                                  values = split_heads(own, part.of_keys, part.keys(v));
        const Keys<T, B> clean = part.clean_keys(own, values);
        const Sums<T, B> sums(own, own.template scratch<T>(queries.extent(0), values.extent(1)),
                              entropy.data() != nullptr);
        part.for_each_block([&](const Block& block) {
          auto of_block = own.mark();
          const Products<T, B> products(own, block);
          const View<const T, 2, B> position = position_scores(own, block, queries, form.relative);
          const View<T, 2, B> w = products.scores(own, queries, keys);
          B::for_rows(own, block.all_rows(), functor::WindowScores<T, B>{part.window, block, clean.mask, position, w});
          B::for_rows(own, block.all_rows(),
                      functor::SoftmaxBlock<T, B, WindowMask<T, B>>{part.mask(clean), block, T(form.scale), w, sums.top,
                                                                    sums.total, sums.scored, sums.sums});
          part.drop(own, block, w);
          products.add(own, w, clean.values, sums.sums);
        });
        B::for_rows(own, part.count * part.window.length,
                    functor::AttendFinish<T, B>{part.of_items, T(form.scale), sums, part.items(context),
                                                part.items(log_sum_exp), part.items(entropy)});
      });
}

/// Backward pass of multi-head attention to a window: adds the gradients of queries, keys and values to dq [N, D], dk
/// and dv [S · keys, D], and the gradient of the position keys to drelative [width, D/H]. If drelative is empty, the
/// gradient of the position keys is not computed.
/// @param dlog_sum_exp  [N, heads] in, the gradient of log_sum_exp; if empty, this gradient is 0
template <class C, class T, class B>
void backward(C& ctx, const WindowForm<T, B>& form, In<T, 2, B> q, In<T, 2, B> k, In<T, 2, B> v, In<T, 2, B> context,
              In<T, 2, B> log_sum_exp, In<T, 2, B> dcontext, In<T, 2, B> dlog_sum_exp, Out<T, 2, B> dq, Out<T, 2, B> dk,
              Out<T, 2, B> dv, Out<T, 2, B> drelative) {
  if (q.extent(0) == 0) return;
  const WindowParts parts(form.window, form.heads, q.extent(0));
  auto mark = ctx.mark();
  // Every part (a range of sequences) has a separate sum for the gradient of the position keys, so that the result does
  // not depend on which threads compute the parts.
  const View<T, 2, B> of_parts = ctx.template scratch<T>(parts.count, drelative.size());
  fill(ctx, of_parts, 0);
  parts.for_each(ctx, form, [&](C& own, const WindowPart<T, B>& part, Index number) {
    const View<const T, 2, B> queries = split_heads(own, part.of_items, part.items(q)),
                              keys = split_heads(own, part.of_keys, part.keys(k)),
                              values = split_heads(own, part.of_keys, part.keys(v)),
                              of_context = split_heads(own, part.of_items, part.items(dcontext));
    const Keys<T, B> clean = part.clean_keys(own, values);
    const Index items = part.count * part.window.length;
    auto mean = own.template scratch<T>(queries.extent(0)), normaliser = own.template scratch<T>(queries.extent(0));
    B::for_rows(own, items,
                functor::AttendMean<T, B>{part.of_items, part.items(context), part.items(dcontext),
                                          part.items(log_sum_exp), part.items(dlog_sum_exp), mean, normaliser});
    const auto sum_to = [&](View<T, 2, B> all, View<const T, 2, B> like) {
      if (form.heads == 1) return all;
      auto d = own.template scratch<T>(like.extent(0), like.extent(1));
      fill(own, d, 0);
      return d;
    };
    const View<T, 2, B> of_q = sum_to(part.items(dq), queries), of_k = sum_to(part.keys(dk), keys),
                        of_v = sum_to(part.keys(dv), values);
    part.for_each_block([&](const Block& block) {
      auto of_block = own.mark();
      const Products<T, B> products(own, block);
      const View<const T, 2, B> position = position_scores(own, block, queries, form.relative);
      const View<T, 2, B> d = products.scores(own, queries, keys), w = products.scores(own, of_context, clean.values);
      B::for_rows(own, block.all_rows(), functor::WindowScores<T, B>{part.window, block, clean.mask, position, d});
      part.drop(own, block, w);
      B::for_rows(own, block.all_rows(),
                  functor::SoftmaxBlockBackward<T, B, WindowMask<T, B>>{part.mask(clean), block, T(form.scale),
                                                                        normaliser, mean, d, w});
      part.drop(own, block, w);
      products.add_transposed(own, w, of_context, of_v);
      products.add(own, d, keys, of_q);
      products.add_transposed(own, d, queries, of_k);
      if (position.empty()) return;
      const View<const T, 2, B> dposition =
          position_scores_backward<C, T, B>(own, block, part.window, {}, d, form.relative, of_q);
      if (drelative.empty()) return;
      const View<T, 2, B> sum = of_parts.rows(number, 1).as(drelative.extent(0), drelative.extent(1));
      B::gemm(own, dposition, true, queries.rows(block.row, block.all_rows()), false, true, sum, functor::Store{});
    });
    if (form.heads == 1) return;
    B::for_rows(own, items, functor::AddHeads<T, B>{part.of_items, of_q, part.items(dq)});
    const Index all_keys = part.count * part.window.keys();
    B::for_rows(own, all_keys, functor::AddHeads<T, B>{part.of_keys, of_k, part.keys(dk)});
    B::for_rows(own, all_keys, functor::AddHeads<T, B>{part.of_keys, of_v, part.keys(dv)});
  });
  if (drelative.empty()) return;
  B::grouped_sum(ctx, one_group(ctx, parts.count), View<const T, 2, B>(of_parts), drelative.as(1, drelative.size()));
}

}  // namespace detail_::attending

namespace functor {

/// Dropout of attention weights: w[i,j] ← ξ w[i,j] / (1 − rate), with ξ 0 or 1 at random (functor::Drop). For item n,
/// head h of H and place o in the window, ξ uses draw (n·H + h)·width + o of the random stream.
template <class T, class B>
struct DropWindow {
  detail_::attending::Window window;
  detail_::attending::Block block;
  detail_::attending::HeadRows rows;
  Index first_item;
  Drop<T> drop;
  View<T, 2, B> w;  // [rows, keys] weights of the block

  GATEFOLD_HD void operator()(const auto& lanes, Index row) const {
    const Index of_head = block.row + row;
    const auto [first, count, place] = window.seen(block, of_head);
    const Index number = ((first_item + rows.item(of_head)) * rows.heads + rows.head(of_head)) * window.width + place;
    T* const seen = w.data() + row * block.keys + first;
    drop(lanes, number, count, seen, seen);
  }
};

}  // namespace functor

}  // namespace gatefold
