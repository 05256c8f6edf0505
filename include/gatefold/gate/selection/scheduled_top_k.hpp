#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "gatefold/core/error.hpp"
#include "gatefold/core/types.hpp"
#include "gatefold/gate/selection/top_k.hpp"

namespace gatefold {

/// Picks the K best experts of each item (TopK), with a K that each call can set, for example to let K grow in training
/// or to reduce it in inference.
///
///     I(n) = top_k rank[n,:],   k from the extra inputs, or the option `k` if that is 0                (1)
///
/// Source: SMoE-dropout, Chen et al. 2023, arXiv:2303.01610, sec. 3.3; schedules of k: Annealed. For weights see TopK.
/// @param extra  k of this call; 0: the option `k`
/// @throws ArgumentError unless 1 <= k <= experts for the k of this call
/// @cost   the cost of TopK. The memory of the plan grows if k exceeds all earlier values; it does not shrink
/// @order  the order of TopK
struct ScheduledTopK {
  Index k = 2;
  bool renormalise = true;
  Index experts = 0;

  static constexpr bool complete_picks = true;

  template <class T, class B>
  struct Extra {
    Index k = 0;
  };

  template <class T, class B>
  void validate(const Nothing<T, B>&, Index, const Extra<T, B>& extra) const {
    if (experts > 0) of(extra).validate_options(experts);
  }
  template <class T, class B>
  void forward(typename B::Context& ctx, const Nothing<T, B>& p, const Candidates<T, B>& c, SparsePlan<T, B>& plan,
               Nothing<T, B>& saved, const Extra<T, B>& extra) const {
    of(extra).forward(ctx, p, c, plan, saved, p);
  }
  template <class T, class B>
  functor::PickTopK<T, B> rows(const Candidates<T, B>& c, SparsePlan<T, B>& plan, const Extra<T, B>& extra) const {
    return of(extra).rows(c, plan, Nothing<T, B>{});
  }
  /// Adds the gradient of q to d.q.
  template <class T, class B>
  void backward(typename B::Context& ctx, const Nothing<T, B>& p, const Candidates<T, B>& c,
                const SparsePlan<T, B>& plan, const Nothing<T, B>& saved, const typename SparsePlan<T, B>::Grad& dplan,
                const CandidatesGrad<T, B>& d, Nothing<T, B>& grads, const Extra<T, B>& extra) const {
    of(extra).backward(ctx, p, c, plan, saved, dplan, d, grads, p);
  }
  template <class T, class B>
  functor::PickTopKBackward<T, B> rows_backward(const Candidates<T, B>& c, const SparsePlan<T, B>& plan,
                                                const typename SparsePlan<T, B>::Grad& dplan, Out<T, 2, B> dq,
                                                const Extra<T, B>& extra) const {
    return of(extra).rows_backward(c, plan, dplan, dq, Nothing<T, B>{});
  }

 private:
  template <class T, class B>
  TopK of(const Extra<T, B>& extra) const {
    return {extra.k == 0 ? k : extra.k, renormalise};
  }
};

/// A number that follows a schedule over training steps, for example K of a growing top-K or the temperature of a
/// mixing.
///
///     s = min(step / total, 1)
///     linear      v = from + (to − from) s                                                              (1)
///     cosine      v = to + (from − to) cos(πs/2)                                                        (2)
///     geometric   v = from · (to / from)^s                                                              (3)
///     levels      v = levels[min(⌊s · count⌋, count − 1)]                                               (4)
///     saturating  v = to + (from − to) 0.99^⌊min(step, total) / max(1, ⌊total/300⌋)⌋                    (5)
///     K           k = from + round(v − from), ties to even, kept within [from, to]                      (6)
///
/// Source: (1), (6) SMoE-dropout, Chen et al. 2023, arXiv:2303.01610. (2), (4), (5) are further schedules of the code
/// of SMoE-dropout. (3) is for the temperatures in table 10 of paper 002, which does not name the shape of the
/// schedule. With levels, `from` and `to` are unused. If 300 divides total, (5) ends at v = to + 0.05 (from − to).
/// @throws ArgumentError unless total >= 1 and step >= 0. For (3), `from` and `to` must have the same sign and not
///         be 0. For (4), there must be at least one level, and total · count must not overflow Index
struct Annealed {
  enum class Shape { linear, cosine, geometric, levels, saturating };

  double from = 1, to = 1;
  Index total = 1;
  Shape shape = Shape::linear;
  std::vector<double> levels{};

  double at(Index step) const {
    expect(total >= 1, "Annealed", "total", "at least 1", total);
    expect(step >= 0, "Annealed", "step", "at least 0", step);
    const double s = static_cast<double>(std::min(step, total)) / static_cast<double>(total);
    switch (shape) {
      case Shape::linear:
        return from + (to - from) * s;
      case Shape::cosine:
        return to + (from - to) * std::cos(1.57079632679489661923 * s);
      case Shape::geometric:
        expect(from * to > 0, "Annealed", "from, to", "numbers of the same sign, not 0", Joined{from, ", ", to});
        return from * std::pow(to / from, s);
      case Shape::levels: {
        const Index count = static_cast<Index>(levels.size());
        expect(count >= 1, "Annealed", "levels", "at least one", count);
        const Index most = std::numeric_limits<Index>::max() / count;
        expect(total <= most, "Annealed", "total", Joined{"at most ", most, " for this number of levels"}, total);
        const Index level = std::min(step, total) * count / total;
        return levels[static_cast<std::size_t>(std::min(level, count - 1))];
      }
      case Shape::saturating: {
        const Index periods = std::min(step, total) / std::max(total / 300, Index(1));
        return to + (from - to) * std::pow(0.99, static_cast<double>(periods));
      }
    }
    return to;
  }
  /// Returns the value of the schedule at a training step as an integer: k by equation (6), or, with levels, the level
  /// (4) rounded.
  Index count_at(Index step) const {
    const double v = at(step), origin = shape == Shape::levels ? 0 : from;
    const double k = origin + (v - origin) - std::remainder(v - origin, 1.0);
    if (shape == Shape::levels) return static_cast<Index>(k);
    return static_cast<Index>(std::clamp(k, std::min(from, to), std::max(from, to)));
  }
};

}  // namespace gatefold
