#pragma once

#include <cmath>

#include "gatefold/attention/attention_trace.hpp"
#include "gatefold/attention/heads.hpp"
#include "gatefold/attention/products.hpp"
#include "gatefold/backend/backend.hpp"
#include "gatefold/backend/epilogue.hpp"
#include "gatefold/backend/groups.hpp"
#include "gatefold/backend/lanes.hpp"
#include "gatefold/backend/softmax.hpp"
#include "gatefold/gate/mixing/posterior_features.hpp"
#include "gatefold/gate/mixing/streamed_mixing.hpp"
#include "gatefold/tensor/expect_shape.hpp"

namespace gatefold {

GATEFOLD_FUNCTORS((class T), Both);

/// A mixing that replaces the probabilities of an item by a weighted mean of the probabilities of the items that it
/// attends to (Attention-Aware gates). A_h[i,j] is the weight with which item u_i attends to item j in head h, v_h,j is
/// the value vector of item j in head h, and O_h the output projection of the head. z are the logits, AP the posterior
/// weights, and σ is `sigma`. α is H, the number of heads, if `mean_of_heads` is true, and 1 otherwise. ∝ means that
/// the sum over j or h is 1.
///
///     r_j = softmax(z_j),   AP_h[i,j] ∝ A_h[i,j] exp(−‖u_i − m_h,j‖² / 2σ²),   m_h,j = α v_h,j O_h        (1)
///     q_i = Σ_j AP_h*[i,j] r_j,   h*(i) = argmin_h of the mean entropy of A_h                            (2)
///     q_i = Σ_h HP[i,h] Σ_j AP_h[i,j] r_j,   HP[i,h] ∝ Σ_j A_h[i,j] exp(−‖u_i − m_h,j‖² / 2σ²)           (3)
///
/// The option `head` selects (2) or (3) (FollowedHead in posterior_features.hpp). The mean in (2) is over the items of
/// the sequence. With causal attention and FollowedHead::lowest_entropy, it is only over the items up to item i.
///
/// Source: paper 002 (Graph of Tokens), lemma 1, eq. (14)-(16). The logarithm of a weight is computed as log A + (⟨u_i,
/// m_j⟩ − ‖m_j‖²/2)/σ² − log-sum-exp. In this form ‖u_i‖² cancels, and no term underflows. A is recomputed from the
/// trace of the attention. σ → ∞ gives the weights A, and σ → 0 selects the item j whose m_j is nearest to u_i. In
/// paper 002 the output of attention is a mean over heads, (1/H) Σ_h A_h X W_h. A usual attention sums v O over heads,
/// so v O corresponds to X W_h / H. `mean_of_heads` therefore multiplies m by H.
///
/// If the attention has a window, j runs over the items of the segment (the part of a sequence in one call) that are in
/// the window of i. Remembered items of earlier segments are left out, because they have no u and no r. If no item of
/// the segment is in the window of i, item i keeps its own r. This happens for the first item of a segment if its
/// window does not contain the item itself.
/// @param x      [N, D] in   items u;  z [N, E] in  logits;  q [N, E] out
/// @param extra  the attention trace with its mask (required; a Block supplies it), and padding
/// @param saved  r, log q [N, E], one log-sum-exp and one head per item. The N × L matrix of weights is never stored
/// @throws ArgumentError unless σ > 0, 1/σ² is finite, the trace has N items of width D, the sequence length of the
///         trace divides N, the number of heads divides D, and the trace has entropies if the attention has a window
/// @cost   2·N·D²/H flop for u O_hᵀ, and 4·N·L·D/H flop for the weights (half if causal, twice if the trace has
///         position keys). With `every`, both numbers are H times as large. Backward needs three times the flop of
///         these two terms. The sums over j need of the order of N·L·E flop (H times as much with `every`). In
///         addition, forward and backward each need 2·(N + D)·D²/H flop for the norms of m_h. The entropies need
///         2·N·L·D flop (half if causal) if the trace has none. Scratch memory in forward: a few times M·D values for
///         each thread, with M the larger of L and 65536 / L items, or a few times N·D if sequences cannot be divided
///         evenly among threads. Scratch memory in backward: a few times N·D values
/// @order  sums run over j in ascending order; if heads have equal entropy, the lower head is followed. With causal
///         attention, no bit of an item depends on later items, except with lowest_entropy_of_sequence, because the
///         head depends on the whole sequence. No item takes probabilities from padding; an item for which (2) or (3)
///         has no item j keeps its own r
struct AttentionPosterior {
  double sigma = 1;
  FollowedHead head = FollowedHead::lowest_entropy;
  bool mean_of_heads = true;
  // If true, item i takes probabilities only from items j with an entropy that is not larger than its own: H(r_j) ≤
  // H(r_i), with r the probabilities before mixing (paper 002, proposition 1).
  bool only_confident = false;

  template <class T, class B>
  struct Extra {
    Required<AttentionTrace<const T, B>> trace;
    View<const T, 1, B> valid{};  // [N] mask: 1 = item, 0 = padding; empty: no padding

    Extra with_valid(View<const T, 1, B> mask) const { return {trace, valid.data() ? valid : mask}; }
    /// Returns the extra inputs of the items [first, first + count). These items must be whole sequences.
    Extra rows(Index first, Index count) const {
      return {trace.value.rows(first, count), rows_if_any(valid, first, count)};
    }
    struct WithoutTrace {
      View<const T, 1, B> valid{};
    };
    static Extra with_trace(const WithoutTrace& rest, const AttentionTrace<const T, B>& trace) {
      return {trace, rest.valid};
    }
  };
  template <class T, class B>
  struct ExtraGrad {
    AttentionTrace<T, B> trace;  // gradient of the trace; empty views if it is not needed
    void set_trace(const AttentionTrace<T, B>& to) { trace = to; }
  };
  template <class T, class B>
  struct Saved {
    Tensor<T, 2, B> r, log_q;     // [N, E]
    Tensor<T, 1, B> log_sum_exp;  // [N]
    Tensor<Index, 1, B> head;     // [N] the attention head that each item follows
    void choices(auto&& f) const {
      for (Index n = 0; n < head.size(); ++n) f(head(n));
    }
  };

  template <class T, class B>
  void validate(const Nothing<T, B>&, Index items, const Extra<T, B>& extra) const {
    expect(sigma > 0, "AttentionPosterior", "sigma", "more than 0", sigma);
    expect(std::isfinite(precision<T>()), "AttentionPosterior", "sigma", "large enough that 1 / sigma² is finite",
           sigma);
    if (extra.valid.data()) expect_shape("AttentionPosterior", "extra.valid", extra.valid, {items});
    // A Block calls validate before its attention has run. The trace is then empty, and forward checks it.
    if (extra.trace.value.q.data()) validate_trace(extra.trace.value, items);
  }
  template <class T, class B>
  static void validate_trace(const AttentionTrace<const T, B>& a, Index items) {
    const Index dim = a.q.extent(1), heads = a.heads();
    for (const auto* t : {&a.q, &a.k, &a.v})
      expect_shape("AttentionPosterior", "extra.trace.q, k, v", *t, {items, dim});
    expect_shape("AttentionPosterior", "extra.trace.log_sum_exp", a.log_sum_exp, {items, any_extent});
    expect_shape("AttentionPosterior", "extra.trace.output", a.output, {dim, dim});
    expect(heads >= 1 && dim % heads == 0, "AttentionPosterior", "extra.trace: heads",
           Joined{"a divisor of ", dim, " (the width of extra.trace.q)"}, heads);
    expect(items == 0 || (a.length >= 1 && items % a.length == 0), "AttentionPosterior", "extra.trace.length",
           Joined{"a divisor of the number of items ", items}, a.length);
    if (a.entropy.data()) expect_shape("AttentionPosterior", "extra.trace.entropy", a.entropy, {items, heads});
    if (a.valid.data()) expect_shape("AttentionPosterior", "extra.trace.valid", a.valid, {items});
    validate_window(a, items);
  }

  template <class T, class B>
  void forward(typename B::Context& ctx, const Nothing<T, B>&, In<T, 2, B> x, In<T, 2, B> z, Out<T, 2, B> q,
               Saved<T, B>& saved, const Extra<T, B>& extra) const {
    const Index items = z.extent(0);
    validate_trace(extra.trace.value, items);
    for (auto* t : {&saved.r, &saved.log_q}) t->resize(items, z.extent(1));
    saved.log_sum_exp.resize(items);
    saved.head.resize(items);
    auto mark = ctx.mark();
    const View<const T, 3, B> gram = gram_of(ctx, extra.trace.value);
    const View<T, 2, B> places = places_of(ctx, extra.trace.value);
    detail_::attending::for_sequences(
        ctx, items, extra.trace.value.length, {}, [&](auto& own, Index first, Index count) {
          const auto part = [&](auto all) { return all.rows(first, count); };
          forward_sequences<T, B>(own, part(x), part(z), part(q), part(saved.r.view()), part(saved.log_q.view()),
                                  part(saved.log_sum_exp.view()), part(saved.head.view()), gram, places,
                                  extra.rows(first, count));
        });
  }
  template <class T, class B>
  View<const T, 2, B> rank(View<const T, 2, B>, const Saved<T, B>& saved) const {
    return saved.log_q;
  }
  /// Writes the gradient of the logits to dz. Adds the gradient of the items to dx, and the gradient of the attention
  /// trace to the views in dextra.trace.
  template <class T, class B>
  void backward(typename B::Context& ctx, const Nothing<T, B>&, In<T, 2, B> x, In<T, 2, B> z, In<T, 2, B> q,
                const Saved<T, B>& saved, In<T, 2, B> drank, In<T, 2, B> dq, Out<T, 2, B> dz, Out<T, 2, B> dx,
                Nothing<T, B>&, const Extra<T, B>& extra, ExtraGrad<T, B>& dextra) const {
    expect_shape("AttentionPosterior.backward", "saved.r", saved.r, {z.extent(0), z.extent(1)});
    expect_shape("AttentionPosterior.backward", "saved.log_q", saved.log_q, {z.extent(0), z.extent(1)});
    expect_shape("AttentionPosterior.backward", "saved.log_sum_exp", saved.log_sum_exp, {z.extent(0)});
    expect_shape("AttentionPosterior.backward", "saved.head", saved.head, {z.extent(0)});
    auto mark = ctx.mark();
    const AttentionTrace<const T, B>& a = extra.trace.value;
    const AttentionTrace<T, B>& da = dextra.trace;
    const Index items = x.extent(0), dim = x.extent(1), heads = a.heads(), width = dim / heads;
    auto log_r = ctx.template scratch<T>(items, z.extent(1)), dr = ctx.template scratch<T>(items, z.extent(1));
    if (only_confident) B::for_rows(ctx, items, functor::LogSoftmax<T, B>{z, log_r});
    const Values<T, B> values = values_of(ctx, a, gram_of(ctx, a));
    auto norms = ctx.template scratch<T>(heads, items);
    B::for_rows(ctx, norms.size(), functor::HeadNorms<T, B>{a.v, values.square, norms});
    const functor::PosteriorFeatures<T, B> f = features(ctx, x, saved.head.view(), extra, norms, places_of(ctx, a)),
                                           d = no_features(ctx, saved.head.view(), a, f.of.following,
                                                           no_places(ctx, a, f));
    for (auto* t : {&d.of.queries, &d.of.keys}) fill(ctx, *t, 0);
    fill(ctx, d.of.places, 0);
    detail_::mixing::backward<typename B::Context, T, B>(
        ctx, heads_of(f), 1, visible<T, B>(ctx, saved.r, log_r, extra, both_masks(ctx, extra)), saved.r, q,
        saved.log_sum_exp, drank, dq, dr, d.of);
    add_places_backward<T, B>(ctx, d.of.places, da.places);
    const ByHead<T, B> by_head = no_projection<T, B>(ctx, saved.head.view(), a);
    const View<const T, 2, B> dprojected = by_head.projected.values;
    auto weighted = ctx.template scratch<T>(heads, items, width);
    B::for_rows(ctx, heads * items,
                functor::PosteriorFeaturesBackward<T, B>{a, da, d, values.square, precision<T>(), alpha<T>(a),
                                                         by_head.projected, weighted});
    if (head == FollowedHead::every) {
      B::gemm(ctx, dprojected, false, a.output, false, true, dx, functor::Store{});
      if (da.output.data()) B::gemm(ctx, dprojected, true, x, false, true, da.output, functor::Store{});
    } else {
      auto of_slots = ctx.template scratch<T>(items, dim);
      const Groups<B> slots = by_head.items.in_slot_order();
      FullPrecision<B>::grouped_gemm(ctx, slots, dprojected, a.output.as(heads, width, dim), false, of_slots,
                                     functor::AddToItem<T, B>{by_head.items.rows, dx});
      if (da.output.data()) {
        B::for_rows(ctx, items, functor::CarryRows<T, T, T, B>{by_head.items.rows, x, {}, of_slots});
        FullPrecision<B>::grouped_outer(ctx, slots, dprojected, View<const T, 2, B>(of_slots),
                                        da.output.as(heads, width, dim));
      }
    }
    if (da.output.data()) {
      auto dgram = ctx.template scratch<T>(heads, width, width);
      fill(ctx, dgram, 0);
      FullPrecision<B>::grouped_outer(ctx, detail_::attending::even_groups(ctx, heads, items),
                                      detail_::mixing::stacked(values.v),
                                      detail_::mixing::stacked(View<const T, 3, B>(weighted)), dgram);
      FullPrecision<B>::grouped_gemm(ctx, detail_::attending::even_groups(ctx, heads, width),
                                     detail_::mixing::stacked(View<const T, 3, B>(dgram)),
                                     a.output.as(heads, width, dim), false, da.output, functor::AddTo<T, B>{da.output});
    }
    B::for_rows(ctx, items, functor::SoftmaxBackward<T, B>{saved.r, dr, dz});
  }

 private:
  template <class T, class B>
  struct Values {
    View<const T, 3, B> v;  // [H, N, D/H] v_h: the values of each attention head
    View<T, 3, B> square;   // [H, N, D/H] v_h O_h O_hᵀ, with O_h the output projection of head h
  };
  template <class T, class B>
  struct ByHead {
    Groups<B> items{};  // items grouped by the head that they follow; empty for FollowedHead::every
    functor::Projection<T, B> projected;
  };

  /// Computes forward for some whole sequences of a batch, for example the sequences of one thread. `gram` (O_h O_hᵀ of
  /// each head's output projection) and `places` (the position keys) are the same for all sequences. All other
  /// arguments contain only the items of the given sequences.
  template <class T, class B>
  void forward_sequences(auto& ctx, In<T, 2, B> x, In<T, 2, B> z, Out<T, 2, B> q, Out<T, 2, B> r, Out<T, 2, B> log_q,
                         Out<T, 1, B> log_sum_exp, Out<Index, 1, B> followed, In<T, 3, B> gram, Out<T, 2, B> places,
                         const Extra<T, B>& extra) const {
    auto mark = ctx.mark();
    const Index items = z.extent(0);
    B::for_rows(ctx, items, functor::Softmax<T, B>{z, r});
    auto log_r = ctx.template scratch<T>(items, z.extent(1));
    B::for_rows(ctx, items, functor::LogSoftmax<T, B>{z, log_r});
    const View<const T, 1, B> valid = both_masks(ctx, extra);
    const AttentionTrace<const T, B>& a = extra.trace.value;
    detail_::mixing::follow_head(ctx, head, a, valid, followed);
    auto norms = ctx.template scratch<T>(a.heads(), items);
    {
      auto of_values = ctx.mark();
      B::for_rows(ctx, norms.size(), functor::HeadNorms<T, B>{a.v, values_of(ctx, a, gram).square, norms});
    }
    const functor::PosteriorFeatures<T, B> f = features<T, B>(ctx, x, followed, extra, norms, places);
    detail_::mixing::forward<typename B::Context, T, B>(ctx, heads_of(f), 1, visible<T, B>(ctx, r, log_r, extra, valid),
                                                        r, log_r, q, log_q, log_sum_exp);
  }

  template <class T>
  T precision() const {
    return T(1 / (sigma * sigma));
  }
  template <class T, class A>
  T alpha(const A& a) const {
    return mean_of_heads ? T(a.heads()) : T(1);
  }

  template <class T, class B>
  functor::PosteriorFeatures<T, B> no_features(auto& ctx, In<Index, 1, B> followed, const AttentionTrace<const T, B>& a,
                                               const detail_::attending::Following<B>& following,
                                               Out<T, 2, B> places) const {
    const bool every = head == FollowedHead::every;
    const Index items = a.q.extent(0), width = a.q.extent(1) / a.heads(), parts = every ? a.heads() : 1;
    const Index columns = functor::PosteriorFeatures<T, B>::columns(width, every);
    return {width,
            every,
            followed,
            {ctx.template scratch<T>(parts, items, columns),
             ctx.template scratch<T>(parts, items * following.heads, columns), following, places}};
  }
  template <class T, class B>
  static void validate_window(const AttentionTrace<const T, B>& a, Index items) {
    if (a.window.width == 0 || items == 0) return;
    const Index width = a.q.extent(1) / a.heads();
    expect(a.causal && a.window.length == a.length && a.window.past == 0, "AttentionPosterior", "extra.trace.window",
           "the window of a causal attention to the items of the trace", "another window");
    expect(a.entropy.data() != nullptr, "AttentionPosterior", "extra.trace.entropy",
           "the entropies, because with a window they cannot be computed from the trace", "an empty view");
    if (a.places.data()) expect_shape("AttentionPosterior", "extra.trace.places", a.places, {a.window.width, width});
  }
  /// Returns the position keys of the attention (AttentionTrace::places) in scratch memory, padded with columns of
  /// zeros to the width of the key vectors of PosteriorFeatures. Returns an empty view if the attention has no position
  /// keys.
  template <class T, class B>
  View<T, 2, B> places_of(auto& ctx, const AttentionTrace<const T, B>& a) const {
    if (a.places.empty()) return {};
    const auto places = ctx.template scratch<T>(
        a.places.extent(0), functor::PosteriorFeatures<T, B>::columns(a.places.extent(1), head == FollowedHead::every));
    B::for_each(ctx, places.size(), functor::WidenRows<T, B>{a.places, places});
    return places;
  }
  /// Returns uninitialised scratch memory for the gradient of the position keys, with a separate array for each
  /// sequence. Returns an empty view if the attention has no position keys.
  template <class T, class B>
  static View<T, 2, B> no_places(auto& ctx, const AttentionTrace<const T, B>& a,
                                 const functor::PosteriorFeatures<T, B>& f) {
    if (a.places.empty()) return {};
    return ctx.template scratch<T>(a.q.extent(0) / a.length * a.places.extent(0), f.of.places.extent(1));
  }
  template <class T, class B>
  static void add_places_backward(auto& ctx, In<T, 2, B> of_each, Out<T, 2, B> dplaces) {
    if (of_each.empty() || dplaces.empty()) return;
    const Index width = dplaces.extent(0), sequences = of_each.extent(0) / width, columns = of_each.extent(1);
    const auto sum = ctx.template scratch<T>(width, columns);
    fill(ctx, sum, 0);
    B::grouped_sum(ctx, one_group(ctx, sequences), of_each.as(sequences, width * columns), sum.as(1, width * columns));
    B::for_each(ctx, dplaces.size(), functor::AddNarrowed<T, B>{sum, dplaces});
  }
  template <class T, class B>
  static MixingHeads<const T, B> heads_of(const functor::PosteriorFeatures<T, B>& f) {
    return {f.of.queries, f.of.keys, f.of.following, f.of.places};
  }
  /// Returns O_h O_hᵀ [H, D/H, D/H] for the output projection O_h of each attention head h, in scratch memory.
  template <class T, class B>
  static View<const T, 3, B> gram_of(auto& ctx, const AttentionTrace<const T, B>& a) {
    const Index dim = a.output.extent(1), heads = a.heads(), width = dim / heads;
    auto gram = ctx.template scratch<T>(heads, width, width);
    auto mark = ctx.mark();
    FullPrecision<B>::grouped_gemm(ctx, detail_::attending::even_groups(ctx, heads, width), a.output,
                                   a.output.as(heads, width, dim), true, detail_::mixing::stacked(gram),
                                   functor::Store{});
    return gram;
  }
  template <class T, class B>
  static Values<T, B> values_of(auto& ctx, const AttentionTrace<const T, B>& a, View<const T, 3, B> gram) {
    const Index items = a.v.extent(0), heads = a.heads();
    const Index width = gram.extent(1);
    const Values<T, B> values{
        detail_::attending::split_heads(ctx, detail_::attending::HeadRows{heads, items}, a.v).as(heads, items, width),
        ctx.template scratch<T>(heads, items, width)};
    auto mark = ctx.mark();
    FullPrecision<B>::grouped_gemm(ctx, detail_::attending::even_groups(ctx, heads, items),
                                   detail_::mixing::stacked(values.v), gram, false,
                                   detail_::mixing::stacked(values.square), functor::Store{});
    return values;
  }
  template <class T, class B>
  functor::PosteriorFeatures<T, B> features(auto& ctx, View<const T, 2, B> x, In<Index, 1, B> followed,
                                            const Extra<T, B>& extra, In<T, 2, B> norms, Out<T, 2, B> places) const {
    const AttentionTrace<const T, B>& a = extra.trace.value;
    const Index items = x.extent(0), dim = x.extent(1), heads = a.heads();
    const auto following = detail_::attending::following<typename B::Context, B>(
        ctx, followed, detail_::mixing::several_heads(head, a) ? heads : 1, a.length);
    const functor::PosteriorFeatures<T, B> f = no_features<T, B>(ctx, followed, a, following, places);
    auto mark = ctx.mark();
    const ByHead<T, B> by_head = no_projection<T, B>(ctx, followed, a);
    if (head == FollowedHead::every)
      B::gemm(ctx, x, false, a.output, true, false, by_head.projected.values, functor::Store{});
    else
      FullPrecision<B>::grouped_gemm(ctx, by_head.items, x, a.output.as(heads, dim / heads, dim), true,
                                     by_head.projected.values, functor::Store{});
    B::for_rows(ctx, heads * items,
                functor::WritePosteriorFeatures<T, B>{a, f, by_head.projected, norms, precision<T>(), alpha<T>(a)});
    return f;
  }
  /// Returns uninitialised scratch memory for the projections u Oᵀ of the items u by the output projection O of the
  /// attention, or for the gradient of these projections. If each item follows one attention head, also sorts the items
  /// by head, so that one matrix product per head can compute the projections.
  template <class T, class B>
  ByHead<T, B> no_projection(auto& ctx, In<Index, 1, B> followed, const AttentionTrace<const T, B>& a) const {
    const Index items = a.q.extent(0), dim = a.q.extent(1), heads = a.heads(), width = dim / heads;
    if (head == FollowedHead::every) return {{}, {width, ctx.template scratch<T>(items, dim)}};
    auto offsets = ctx.template scratch<Index>(heads + 1), order = ctx.template scratch<Index>(items),
         slots = ctx.template scratch<Index>(items);
    B::group_by(ctx, followed, offsets, order);
    B::for_each(ctx, items, functor::InvertOrder<B>{order, slots});
    return {{offsets, order, items}, {width, ctx.template scratch<T>(items, width), slots}};
  }
  /// Returns a mask [N] that is 1 for an item unless it is padding in the attention or in the gate. Returns an empty
  /// view if neither of them has a mask.
  template <class T, class B>
  static View<const T, 1, B> both_masks(auto& ctx, const Extra<T, B>& extra) {
    const View<const T, 1, B> of_attention = extra.trace.value.valid;
    if (!of_attention.data()) return extra.valid;
    if (!extra.valid.data()) return of_attention;
    auto both = ctx.template scratch<T>(extra.valid.size());
    B::for_each(ctx, both.size(), functor::Both<T>{extra.valid.data(), of_attention.data(), both.data()});
    return both;
  }
  template <class T, class B>
  Visible<T, B> visible(auto& ctx, View<const T, 2, B> r, View<const T, 2, B> log_r, const Extra<T, B>& extra,
                        In<T, 1, B> valid) const {
    const AttentionTrace<const T, B>& a = extra.trace.value;
    Visible<T, B> v{.length = a.length, .causal = a.causal, .valid = valid, .window = a.window};
    if (only_confident) v.entropy = detail_::mixing::entropies(ctx, r, log_r);
    return v;
  }
};

namespace functor {

template <class T>
struct Both {
  const T *a, *b;
  T* both;
  GATEFOLD_HD void operator()(Index n) const { both[n] = a[n] != 0 && b[n] != 0 ? T(1) : T(0); }
};

}  // namespace functor

}  // namespace gatefold
