#pragma once

#include "gatefold/backend/math.hpp"
#include "gatefold/gate/auxiliary/balance_loss.hpp"

namespace gatefold {

GATEFOLD_FUNCTORS((class T, class B), SigmoidShares, SequenceLoss, MeanOfSequences, SequenceBalanceBackward);

/// An auxiliary loss that rewards an even load of E experts within each sequence. It is the mean of Balance over the
/// sequences of `length` items.
///
///     loss = weight · (1/G) Σ_g E Σ_e f[g,e] P[g,e],   P[g,e] = mean of s[n,e] over the items n of sequence g     (1)
///     f[g,e] = share of expert e in the picks of sequence g                                             (2)
///     s = q by default,   s[n,e] = σ(z[n,e]) / Σ_f σ(z[n,f]) if `sigmoid` is true                        (3)
///
/// At perfect balance in each of the G sequences, the loss is `weight`. f counts all picks, including picks that were
/// dropped because of a capacity. A count has no derivative, so the gradient flows only through P. Sequences that
/// consist only of padding do not count.
/// Source: DeepSeek-V2, arXiv:2405.04434, eq. (23) to (25), applied to each sequence as in its code (s = q);
/// DeepSeek-V3, arXiv:2412.19437, eq. (17) to (20) (sigmoid, with the gate SigmoidTopK and weight 0.0001).
/// @param length   number of items of a sequence; the last sequence can be shorter. 0: all items are one sequence
/// @param sigmoid  if true, P is the mean of normalised sigmoids of the logits z instead of the probabilities q
/// @throws ArgumentError unless weight is finite and length >= 0
/// @cost  N·(E + K) reads, a counting sort of the picks by sequence and expert, and 2·G·E values of scratch memory;
///        with sigmoid, also 2·N·E sigmoids (more in backward) and N·E values of scratch memory
/// @order picks are counted in integers; P is summed in double, on the CPU in the order of the items
struct SequenceBalance {
  double weight = 0.0001;
  Index length = 0;
  bool sigmoid = false;

  void validate(Index) const {
    expect_finite("SequenceBalance", "weight", weight);
    expect(length >= 0, "SequenceBalance", "length", "at least 0", length);
  }
  template <class T, class B>
  void forward(typename B::Context& ctx, const GateOutcome<T, B>& a, Out<T, 1, B> value) const {
    auto mark = ctx.mark();
    (void)slopes(ctx, a, value);
  }
  template <class T, class B>
  void backward(typename B::Context& ctx, const GateOutcome<T, B>& a, const GateOutcomeGrad<T, B>& d) const {
    auto mark = ctx.mark();
    const auto slope = slopes(ctx, a, {});
    B::for_rows(ctx, a.logits.extent(0),
                functor::SequenceBalanceBackward<T, B>{
                    sigmoid, items_of_sequence(a), a.logits, {a.valid}, slope, sigmoid ? d.logits : d.probabilities});
  }

 private:
  template <class T, class B>
  Index items_of_sequence(const GateOutcome<T, B>& a) const {
    const Index items = a.logits.extent(0);
    return length > 0 && length < items ? length : items;
  }
  /// Writes the loss (1) to `value`, unless that view is empty. Returns the derivatives [G, E] of the loss by s in
  /// scratch memory, which is valid until the caller's `ctx.mark()` goes out of scope.
  template <class T, class B>
  View<T, 2, B> slopes(auto& ctx, const GateOutcome<T, B>& a, Out<T, 1, B> value) const {
    const Index items = a.logits.extent(0), experts = a.logits.extent(1), each = items_of_sequence(a),
                sequences = each > 0 ? divide_up(items, each) : 0;
    const auto slope = ctx.template scratch<T>(sequences, experts), total = ctx.template scratch<T>(sequences, experts);
    const auto loss = ctx.template scratch<T>(sequences), filled = ctx.template scratch<T>(sequences);
    const auto offsets = functor::sorted_loads(ctx, a, Index(1), sequences, each);
    {
      auto mark = ctx.mark();
      View<const T, 2, B> s = a.probabilities;
      if (sigmoid) {
        const auto shares = ctx.template scratch<T>(items, experts);
        B::for_rows(ctx, items, functor::SigmoidShares<T, B>{a.logits, shares});
        s = shares;
      }
      functor::sum_over_items(ctx, s, a.valid, each, total);
    }
    B::for_each(ctx, sequences,
                functor::SequenceLoss<T, B>{T(weight), each, items, offsets, total, {a.valid}, slope, loss, filled});
    B::for_each(ctx, 1, functor::MeanOfSequences<T, B>{loss, filled, slope, value});
    return slope;
  }
};

namespace functor {

/// Writes shares[n,e] = σ(z[n,e]) / Σ_f σ(z[n,f]).
template <class T, class B>
struct SigmoidShares {
  View<const T, 2, B> z;
  View<T, 2, B> shares;
  GATEFOLD_HD void operator()(const auto& lanes, Index n) const {
    T sum = 0;
    for (Index e = lanes.lane; e < z.extent(1); e += lanes.size) sum += math::sigmoid(z(n, e));
    sum = lanes.sum(sum);
    for (Index e = lanes.lane; e < z.extent(1); e += lanes.size) shares(n, e) = math::sigmoid(z(n, e)) / sum;
  }
};
/// Writes loss[g], the loss of sequence g, and slope[g,e], the derivative of loss[g] by the share s[n,e] of expert e
/// for any item n of the sequence. MeanOfSequences later averages the losses, and divides the derivatives by the number
/// of sequences. Writes filled[g] = 0 if all items of the sequence are padding, otherwise 1.
template <class T, class B>
struct SequenceLoss {
  T weight;
  Index length, items;
  View<const Index, 1, B> offsets;  // [G·E + 1] start of each sequence and expert in the sorted picks
  View<const T, 2, B> total;        // [G, E] sums of s
  Valid<T, B> valid;
  View<T, 2, B> slope;
  View<T, 1, B> loss, filled;
  GATEFOLD_HD void operator()(Index g) const {
    const Index experts = total.extent(1), first = g * experts, end = (g + 1) * length;
    const Index picks = offsets(first + experts) - offsets(first);
    Index count = 0;
    for (Index n = g * length; n < end && n < items; ++n) count += valid(n) != 0;
    T sum = 0;
    for (Index e = 0; e < experts; ++e) {
      const T f =
          picks > 0 ? static_cast<T>(offsets(first + e + 1) - offsets(first + e)) / static_cast<T>(picks) : T(0);
      slope(g, e) = count > 0 ? weight * T(experts) * f / static_cast<T>(count) : T(0);
      sum += count > 0 ? slope(g, e) * total(g, e) : T(0);
    }
    loss(g) = sum;
    filled(g) = count > 0 ? T(1) : T(0);
  }
};
/// Writes the mean loss of the sequences that have at least one item that is not padding to `value`, unless that view
/// is empty. Divides the derivatives in `slope` by the number of these sequences.
template <class T, class B>
struct MeanOfSequences {
  View<const T, 1, B> loss, filled;
  View<T, 2, B> slope;
  View<T, 1, B> value;
  GATEFOLD_HD void operator()(Index) const {
    T sum = 0, count = 0;
    for (Index g = 0; g < loss.size(); ++g) sum += loss(g), count += filled(g);
    if (value.data()) value(0) = count > 0 ? sum / count : T(0);
    for (Index i = 0; i < slope.size() && count > 0; ++i) slope.data()[i] /= count;
  }
};
/// Adds the gradient of item n to `to`: the gradient of its probabilities, or of its logits if the loss uses normalised
/// sigmoids.
template <class T, class B>
struct SequenceBalanceBackward {
  bool sigmoid;
  Index length;
  View<const T, 2, B> z;
  Valid<T, B> valid;
  View<const T, 2, B> slope;
  View<T, 2, B> to;
  GATEFOLD_HD void operator()(const auto& lanes, Index n) const {
    if (valid(n) == 0) return;
    const Index experts = z.extent(1), g = n / length;
    T sum = 0, dot = 0;
    for (Index e = lanes.lane; e < experts && sigmoid; e += lanes.size) {
      sum += math::sigmoid(z(n, e));
      dot += math::sigmoid(z(n, e)) * slope(g, e);
    }
    sum = lanes.sum(sum);
    dot = lanes.sum(dot);
    for (Index e = lanes.lane; e < experts; e += lanes.size) {
      if (!sigmoid) {
        to(n, e) += slope(g, e);
      } else {
        to(n, e) += math::sigmoid(z(n, e)) * math::sigmoid(-z(n, e)) / sum * (slope(g, e) - dot / sum);
      }
    }
  }
};

}  // namespace functor

}  // namespace gatefold
