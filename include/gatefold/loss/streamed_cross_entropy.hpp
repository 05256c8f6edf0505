#pragma once

#include <algorithm>
#include <cmath>
#include <utility>

#include "gatefold/backend/groups.hpp"
#include "gatefold/backend/initial_values.hpp"
#include "gatefold/backend/math.hpp"
#include "gatefold/backend/softmax.hpp"
#include "gatefold/loss/loss.hpp"
#include "gatefold/policy/options.hpp"
#include "gatefold/policy/policy.hpp"

namespace gatefold {

GATEFOLD_FUNCTORS((class T, class B), StreamLogits, StreamedValue, SoftmaxScale, CopyCounted, SoftmaxOfLogit,
                  SubtractLabel, SubtractFromCounted);

/// The output layer of a language model together with the cross-entropy of the logits. It computes logits in blocks, so
/// the logits [N, V] of all items are never in memory at once. It is a loss with learned parameters (loss.hpp).
///
///     z[n,v] = ⟨y[n], W[v]⟩ + b[v],   loss = (1/N) Σ_n (log Σ_v exp z[n,v] − z[n, label[n]])              (1)
///     label_smoothing = ε:  (1) with (1 − ε) z[n, label[n]] + (ε/V) Σ_v z[n,v] in place of z[n, label[n]]   (2)
///
/// Source: torch.nn.Linear followed by torch.nn.CrossEntropyLoss. The running maximum and sum are from Milakov and
/// Gimelshein 2018, arXiv:1805.02867.
/// @param y      [N, D] in   output of the model
/// @param target [N]    in   labels in [0, V)
/// @param bias   if true, there is a learned b [V]; otherwise b = 0
/// @param tied   if true, W is not a parameter of the loss. W is then the first Table of the model, which is the weight
///               of its Embedding. Embedding and loss add to the same gradient, which is dense
/// @param ignore  label of the items that do not count, as in CrossEntropy
/// @param initial  initial values of W and b, with fan-in model_dim
/// @param label_smoothing  ε in [0, 1], as in CrossEntropy. It changes forward and backward, but not `each`
/// @throws ArgumentError unless arrays have the shapes given here, vocabulary and model_dim are at least 1, each row
///         has one label, in [0, V) or `ignore` (on a device, only debug builds check the range), and, if tied, the
///         first Table of the model is [V, D]
/// @cost   2·N·V·D flop and N·V exponentials forward; 6·N·V·D flop and N·V exponentials backward, because backward
///         computes the logits again; scratch for one block of logits (Blocks, at most 16 MB in float) and for up to 3
///         values per item, in backward also for N·D values if labels can be ignored
/// @order  blocks are processed by ascending rows, and for the same rows by ascending words of the vocabulary. The bits
///         are the same for every number of threads. On a host, the value of an item does not depend on the other items
struct StreamedCrossEntropy {
  Index vocabulary = 0, model_dim = 0;
  bool bias = true, tied = false;
  Index ignore = ignore_none;
  Initial initial{};
  double label_smoothing = 0;

  /// The size of the block of logits that is in memory at a time: 16 MB in float. In forward, a product that stores no
  /// logits (gemm_rows) was tried and made no difference in time.
  struct Blocks {
    static constexpr Index rows = 4096, columns = 1024;
  };

  template <class T, class B>
  using Target = View<const Index, 1, B>;
  template <class T, class B>
  struct Params {
    static constexpr bool gradient_is_optional = true;
    Tensor<T, 2, B> weight;  // [V, D], [0, D] if tied
    Tensor<T, 1, B> bias;    // [V], [0] without bias
    GATEFOLD_PACK(weight, bias)
  };
  template <class T, class B>
  struct Saved {
    Tensor<T, 1, B> top, total;  // [N] max_v z[n,v],  Σ_v exp(z[n,v] − top[n])
  };

  template <class T, class B>
  Params<T, B> init(typename B::Context& ctx, Seed seed) const {
    expect_sizes("StreamedCrossEntropy.init", {{"vocabulary", vocabulary}, {"model_dim", model_dim}});
    const auto here = ctx.here();
    Tensor<T, 2, B> weight(tied ? 0 : vocabulary, model_dim);
    detail_::initial::draw(ctx, initial, seed.fork(0),
                           initial.law == Initial::Law::reference ? weight.size() : model_dim, weight);
    return {std::move(weight), initial_biases<T>(ctx, initial, seed.fork(1), model_dim, bias ? vocabulary : 0)};
  }
  template <class T, class B>
  void validate(In<T, 2, B> y, In<Index, 1, B> target) const {
    expect_shape("StreamedCrossEntropy", "y", y, {any_extent, model_dim});
    detail_::loss::expect_label_smoothing("StreamedCrossEntropy", label_smoothing);
    detail_::loss::expect_labels<B>("StreamedCrossEntropy", target, y.extent(0), vocabulary, ignore);
  }
  /// Returns the number of labels that are not `ignore`.
  template <class C>
  Index counted(C& ctx, In<Index, 1, typename C::Backend> target) const {
    return detail_::loss::count_labels<typename C::Backend>(ctx, target, ignore);
  }

  template <class T, class B, class ModelP>
  void forward(typename B::Context& ctx, const Params<T, B>& p, const ModelP& model, In<T, 2, B> y,
               In<Index, 1, B> target, Out<T, 1, B> value, Saved<T, B>& saved) const {
    const auto here = ctx.here();
    validate<T, B>(y, target);
    const auto w = weights(p, model);
    auto mark = ctx.mark();
    auto each = ctx.template scratch<T>(y.extent(0));
    saved.top.resize(y.extent(0));
    saved.total.resize(y.extent(0));
    stream(ctx, w, y, target, label_smoothing, saved.top.view(), saved.total.view(), each);
    mean_loss<T, B>(ctx, y.extent(0), detail_::loss::share_of_mean<B>(ctx, target, ignore),
                    functor::Term<T>{each.data()}, value);
  }
  template <class T, class B, class ModelP>
  void backward(typename B::Context& ctx, const Params<T, B>& p, const ModelP& model, In<T, 2, B> y,
                In<Index, 1, B> target, const Saved<T, B>& saved, Out<T, 2, B> dy, Params<T, B>& grads,
                ModelP& dmodel) const {
    validate<T, B>(y, target);
    const auto w = weights(p, model);
    expect_shape("StreamedCrossEntropy.backward", "dy", dy, {y.extent(0), model_dim});
    expect_shape("StreamedCrossEntropy.backward", "saved.top", saved.top, {y.extent(0)});
    expect_shape("StreamedCrossEntropy.backward", "saved.total", saved.total, {y.extent(0)});
    expect_like("StreamedCrossEntropy.backward", "grads", p, grads);
    differentiate<T, B>(ctx, w, y, target, saved, dy, tied ? first_table<T, B>(dmodel)->view() : grads.weight.view(),
                        grads.bias);
  }

  /// Computes the logits z of (1) for M outputs y of the model, for example to sample tokens from them.
  /// @param model  parameters of the model, or the member `model` of a FrozenDecoder (model/decoder.hpp), which also
  ///               has the packed copy of the output layer
  /// @param y [M, D] in, z [M, V] out
  template <class T, class B, class ModelP>
  void logits(typename B::Context& ctx, const Params<T, B>& p, const ModelP& model, In<T, 2, B> y,
              Out<T, 2, B> z) const {
    expect_shape("StreamedCrossEntropy.logits", "y", y, {any_extent, model_dim});
    expect_shape("StreamedCrossEntropy.logits", "z", z, {y.extent(0), vocabulary});
    detail_::lookup::with_packed(ctx, model, [&] { block_of_logits<T, B>(ctx, weights(p, model), y, 0, z); });
  }
  /// Writes log_p [M, V], the log-probabilities of all V labels for M outputs y [M, D] of the model. They are the log
  /// softmax of the logits z in (1).
  template <class T, class B, class ModelP>
  void log_probabilities(typename B::Context& ctx, const Params<T, B>& p, const ModelP& model, In<T, 2, B> y,
                         Out<T, 2, B> log_p) const {
    logits(ctx, p, model, y, log_p);
    B::for_rows(ctx, y.extent(0), functor::LogSoftmax<T, B>{log_p, log_p});
  }
  /// Computes the loss (1) of each item, without label smoothing: the negative log-probability of its label, or 0 if
  /// the label is `ignore`.
  /// @param value [N] out
  template <class T, class B, class ModelP>
  void each(typename B::Context& ctx, const Params<T, B>& p, const ModelP& model, In<T, 2, B> y, In<Index, 1, B> target,
            Out<T, 1, B> value) const {
    validate<T, B>(y, target);
    expect_shape("StreamedCrossEntropy.each", "value", value, {y.extent(0)});
    auto mark = ctx.mark();
    auto top = ctx.template scratch<T>(y.extent(0)), total = ctx.template scratch<T>(y.extent(0));
    detail_::lookup::with_packed(ctx, model,
                                 [&] { stream<T, B>(ctx, weights(p, model), y, target, 0, top, total, value); });
  }

 private:
  template <class T, class B>
  struct Weights {
    View<const T, 2, B> weight;  // [V, D]
    View<const T, 1, B> bias;    // [V]; empty: no bias
    View<const T, 1, B> bias_of(Index first, Index count) const {
      return !bias.empty() ? bias.rows(first, count) : View<const T, 1, B>{};
    }
  };
  template <class T, class B, class ModelP>
  Weights<T, B> weights(const Params<T, B>& p, const ModelP& model) const {
    expect_shape("StreamedCrossEntropy", "params.weight", p.weight, {tied ? 0 : vocabulary, model_dim});
    expect_shape("StreamedCrossEntropy", "params.bias", p.bias, {bias ? vocabulary : 0});
    if (!tied) return {p.weight, p.bias};
    const auto* table = first_table<T, B>(model_params(model));
    expect(table, "StreamedCrossEntropy", "model", "a model with an Embedding, because the loss is tied to its Table",
           "no Embedding");
    expect_shape("StreamedCrossEntropy", "the model's first Table", *table, {vocabulary, model_dim});
    return {*table, p.bias};
  }

  /// Computes the gradients of the loss, given the output weights W and b. Writes the gradient of y to dy. Adds the
  /// gradients of W and b to dw [V, D] and db [V], unless these views are empty.
  template <class T, class B>
  void differentiate(typename B::Context& ctx, const Weights<T, B>& w, In<T, 2, B> y, In<Index, 1, B> target,
                     const Saved<T, B>& saved, Out<T, 2, B> dy, Out<T, 2, B> dw, Out<T, 1, B> db) const {
    auto mark = ctx.mark();
    const functor::ShareOfMean share = detail_::loss::share_of_mean<B>(ctx, target, ignore);
    auto top = ctx.template scratch<T>(y.extent(0)), scale = ctx.template scratch<T>(y.extent(0));
    B::for_each(ctx, y.extent(0),
                functor::SoftmaxScale<T, B>{saved.top, saved.total, target, ignore, share, top, scale});
    View<const T, 2, B> counted = y;
    if (ignore != ignore_none) {  // a value of an ignored item, for example NaN, must not reach a gradient
      auto finite = ctx.template scratch<T>(y.extent(0), model_dim);
      fill(ctx, finite, 0);
      B::for_rows(ctx, y.extent(0), functor::CopyCounted<T, B>{target, ignore, y, finite});
      counted = finite;
    }
    for_blocks(ctx, counted, [&](Index row, Index rows, Index first, View<T, 2, B> dz) {
      const View<const T, 2, B> h = counted.rows(row, rows), wv = w.weight.rows(first, dz.extent(1));
      const View<const Index, 1, B> label = target.rows(row, rows);
      const functor::SoftmaxOfLogit<T, B> softmax{w.bias_of(first, dz.extent(1)),
                                                  View<const T, 1, B>(top).rows(row, rows),
                                                  View<const T, 1, B>(scale).rows(row, rows)};
      B::gemm(ctx, h, false, wv, true, false, dz, softmax);
      // With label smoothing, the target is 1 − ε + ε/V for the label and ε/V for the other words.
      if (label_smoothing > 0)
        B::for_rows(ctx, rows,
                    functor::SubtractFromCounted<T, B>{
                        label, ignore, static_cast<T>(label_smoothing / static_cast<double>(vocabulary)), share, dz});
      B::for_each(ctx, rows,
                  functor::SubtractLabel<T, B>{label, ignore, first, static_cast<T>(1 - label_smoothing), share, dz});
      const View<const T, 2, B> d = dz;
      B::gemm(ctx, d, false, wv, false, first > 0, dy.rows(row, rows), functor::Store{});
      if (dw.size() > 0) B::gemm(ctx, d, true, h, false, true, dw.rows(first, dz.extent(1)), functor::Store{});
      const auto of_block = ctx.mark();
      if (db.size() > 0) B::grouped_sum(ctx, one_group(ctx, rows), d, db.rows(first, dz.extent(1)).as(1, dz.extent(1)));
    });
  }

  /// Calls f(row, rows, first, z) for each block of logits. The block has the logits of `rows` items, from item `row`
  /// on, for words of the vocabulary from word `first` on. z [rows, columns] is scratch memory for these logits.
  template <class T, class B, class F>
  void for_blocks(typename B::Context& ctx, View<const T, 2, B> y, const F& f) const {
    const Index items = y.extent(0), most = std::min(items, Blocks::rows),
                width = std::min(vocabulary, Blocks::columns);
    auto mark = ctx.mark();
    T* scratch = ctx.template scratch<T>(most, width).data();
    for (Index row = 0; row < items; row += Blocks::rows)
      for (Index first = 0; first < vocabulary; first += Blocks::columns) {
        const Index rows = std::min(items - row, Blocks::rows);
        f(row, rows, first, View<T, 2, B>(scratch, rows, std::min(vocabulary - first, Blocks::columns)));
      }
  }
  template <class T, class B>
  void block_of_logits(typename B::Context& ctx, const Weights<T, B>& w, View<const T, 2, B> y, Index first,
                       View<T, 2, B> z) const {
    if (bias) {
      multiply<T, B>(ctx, w, y, first, z, functor::AddBias<T, B>{w.bias.rows(first, z.extent(1)).as(1, z.extent(1))});
    } else {
      multiply<T, B>(ctx, w, y, first, z, functor::Store{});
    }
  }
  /// Computes a block of logits z, with a packed copy of the weights if the context uses one.
  template <class T, class B, class E>
  static void multiply(typename B::Context& ctx, const Weights<T, B>& w, View<const T, 2, B> y, Index first,
                       View<T, 2, B> z, const E& epilogue) {
    if constexpr (requires { &B::template packs_transposed<T>; })
      if (B::gemm_transposed(ctx, y, w.weight, first, z, epilogue)) return;
    B::gemm(ctx, y, false, w.weight.rows(first, z.extent(1)), true, false, z, epilogue);
  }
  /// Writes the loss of each item to `value`, with the label smoothing `smoothing`. Also writes `top` and `total` for
  /// backward: the largest logit of the item, and the sum of exponentials relative to it.
  template <class T, class B>
  void stream(typename B::Context& ctx, const Weights<T, B>& w, View<const T, 2, B> y, View<const Index, 1, B> target,
              double smoothing, View<T, 1, B> top, View<T, 1, B> total, View<T, 1, B> value) const {
    auto mark = ctx.mark();
    auto chosen = ctx.template scratch<T>(y.extent(0));
    const View<T, 1, B> sum = smoothing > 0 ? ctx.template scratch<T>(y.extent(0)) : View<T, 1, B>{};
    for_blocks(ctx, y, [&](Index row, Index rows, Index first, View<T, 2, B> z) {
      block_of_logits(ctx, w, y.rows(row, rows), first, z);
      B::for_rows(
          ctx, rows,
          functor::StreamLogits<T, B>{z, target.rows(row, rows), first, top.rows(row, rows), total.rows(row, rows),
                                      chosen.rows(row, rows), sum.empty() ? sum : sum.rows(row, rows)});
    });
    B::for_each(ctx, y.extent(0),
                functor::StreamedValue<T, B>{top, total, chosen, sum, target, ignore, vocabulary, smoothing, value});
  }
};

namespace functor {

/// Adds a block z of logits to the running log-sum-exp of each row. Column j of the block belongs to label `first` + j.
/// If the label of the row is in the block, stores its logit in `chosen`. Adds the logits to `sum`, unless `sum` is
/// empty.
template <class T, class B>
struct StreamLogits {
  View<const T, 2, B> z;
  View<const Index, 1, B> label;
  Index first;
  View<T, 1, B> top, total, chosen, sum;  // over all blocks so far: max z,  Σ exp(z − top),  z[label],  Σ z
  GATEFOLD_HD void operator()(const auto& lanes, Index n) const {
    using functor::math::exp;
    const Index columns = z.extent(1);
    const T* row = z.data() + n * columns;
    const T before = first == 0 ? negative_infinity<T> : from_first(lanes, [&] { return top(n); });
    const T here = functor::top(lanes, columns, row), now = here > before ? here : before;
    const T from = now == negative_infinity<T> ? T(0) : now;  // if all logits are −∞, exp gives 0 and not NaN
    const T here_total =
        sum_columns<T>(lanes, columns, [&](const auto& at, Index c) { return exp(at.load(row + c) - from); });
    T here_sum = 0;
    if (sum.data())
      here_sum = sum_columns<T>(lanes, columns, [&](const auto& at, Index c) { return at.load(row + c); });
    if (lanes.lane != 0) return;
    const Index l = label(n) - first;
    top(n) = now;
    total(n) = first == 0 ? here_total : total(n) * exp(before - from) + here_total;
    if (sum.data()) sum(n) = first == 0 ? here_sum : sum(n) + here_sum;
    if (0 <= l && l < columns) chosen(n) = row[l];
  }
};
/// Writes the loss of item n, log Σ_v exp z[n,v] − z[n, label[n]], with label smoothing (2), or 0 if its label is
/// `ignore`.
template <class T, class B>
struct StreamedValue {
  View<const T, 1, B> top, total, chosen, sum;  // sum is empty without label smoothing
  View<const Index, 1, B> label;
  Index ignore, labels;
  double label_smoothing;
  View<T, 1, B> value;
  GATEFOLD_HD void operator()(Index n) const {
    GATEFOLD_ASSERT(label(n) == ignore || (0 <= label(n) && label(n) < labels),
                    "StreamedCrossEntropy: label out of range");
    value(n) = label(n) == ignore ? T(0) : std::log(total(n)) - smoothed(n, chosen(n) - top(n));
  }

 private:
  /// Returns (1 − ε) v + ε (mean of z[n,:] − top[n]), or v without label smoothing.
  GATEFOLD_HD T smoothed(Index n, T v) const {
    if (!sum.data()) return v;
    return T(1 - label_smoothing) * v + T(label_smoothing) * (sum(n) / static_cast<T>(labels) - top(n));
  }
};
/// Writes two numbers for each item n, from which SoftmaxOfLogit computes the gradients of the item's logits z.
/// scale[n] is share / Σ_v exp(z[n,v] − top[n]), with `share` the weight of an item in the mean and top[n] the largest
/// logit. top_of_counted[n] is top[n]. If the label is `ignore`, scale[n] is 0 and top_of_counted[n] is +∞, so that the
/// gradients are 0 for any logits.
template <class T, class B>
struct SoftmaxScale {
  View<const T, 1, B> top, total;
  View<const Index, 1, B> label;
  Index ignore;
  ShareOfMean share;
  View<T, 1, B> top_of_counted, scale;
  GATEFOLD_HD void operator()(Index n) const {
    const bool counts = label(n) != ignore;
    top_of_counted(n) = counts ? top(n) : -negative_infinity<T>;
    scale(n) = counts ? share.template of<T>() / total(n) : T(0);
  }
};
/// Copies row n of y to the same row of `to`, unless the label of item n is `ignore`.
template <class T, class B>
struct CopyCounted {
  View<const Index, 1, B> label;
  Index ignore;
  View<const T, 2, B> y;
  View<T, 2, B> to;
  GATEFOLD_HD void operator()(const auto& lanes, Index n) const {
    if (label(n) == ignore) return;
    each_column<T>(lanes, y.extent(1), [&](auto at, Index j) { at.store(&to(n, j), at.load(&y(n, j))); });
  }
};
/// An epilogue of the product that computes logits v. It replaces the logit in row s and column j by scale[s] exp(v +
/// bias[j] − top[s]). This number is the gradient of the logit, except for the term of the label.
template <class T, class B>
struct SoftmaxOfLogit {
  View<const T, 1, B> bias;  // empty: no bias
  View<const T, 1, B> top, scale;
  template <class A>
  GATEFOLD_HD typename A::Value operator()(const A& at, Index, Index s, Index j, typename A::Value v) const {
    using functor::math::exp;
    return bias.data() ? scale(s) * exp(v + at.load(bias.data() + j) - top(s)) : scale(s) * exp(v - top(s));
  }
};
/// Subtracts `part` times the weight of an item in the mean (`share`) from row n of dz, unless the label of item n is
/// `ignore`.
template <class T, class B>
struct SubtractFromCounted {
  View<const Index, 1, B> label;
  Index ignore;
  T part;
  ShareOfMean share;
  View<T, 2, B> dz;
  GATEFOLD_HD void operator()(const auto& lanes, Index n) const {
    if (label(n) == ignore) return;
    const T less = part * share.template of<T>();
    each_column<T>(lanes, dz.extent(1),
                   [&](const auto& at, Index j) { at.store(&dz(n, j), at.load(&dz(n, j)) - less); });
  }
};
/// Adds the term of the label to the gradients dz of a block of logits: subtracts `part` times the weight of an item in
/// the mean (`share`) from dz[n, label[n] − first], if the label is in this block and is not `ignore`.
template <class T, class B>
struct SubtractLabel {
  View<const Index, 1, B> label;
  Index ignore, first;
  T part;  // 1, or 1 − ε with label smoothing
  ShareOfMean share;
  View<T, 2, B> dz;
  GATEFOLD_HD void operator()(Index n) const {
    const Index l = label(n) - first;
    if (label(n) != ignore && 0 <= l && l < dz.extent(1)) dz(n, l) -= part * share.template of<T>();
  }
};

}  // namespace functor

}  // namespace gatefold
