#pragma once

#include "gatefold/gate/auxiliary/balance_loss.hpp"
#include "gatefold/gate/auxiliary/cv_squared.hpp"

namespace gatefold {

/// An auxiliary loss that rewards an even importance of the experts. The importance of an expert is the sum of its
/// probabilities over all items.
///
///     loss = weight · CV²(v),   v_e = Σ_n q[n,e]                                                        (1)
///
/// CV² is the squared coefficient of variation (CvSquared), and q[n,e] the softmax of the logits without noise. The
/// loss is 0 at perfect balance.
/// Source: Riquelme et al. 2021, arXiv:2106.05974, appendix on auxiliary losses. Shazeer et al. 2017, arXiv:1701.06538,
/// eq. (6)-(7), sum the weights of the picks instead of q. `shazeer()` returns the options that their code has for CV²,
/// but the sum is still over q.
/// @throws ArgumentError unless weight is finite and the options of cv fit
/// @cost  N·E reads
/// @order v is summed in double, in the order of the items
struct Importance {
  double weight = 0.005;
  CvSquared cv{};

  static Importance shazeer() { return shazeer({.weight = 0.1}); }
  static Importance shazeer(Importance options) {
    options.cv = CvSquared::shazeer();
    return options;
  }

  void validate(Index) const {
    expect_finite("Importance", "weight", weight);
    cv.validate("Importance");
  }
  template <class T, class B>
  void forward(typename B::Context& ctx, const GateOutcome<T, B>& a, Out<T, 1, B> value) const {
    auto mark = ctx.mark();
    slopes(ctx, a, value);
  }
  template <class T, class B>
  void backward(typename B::Context& ctx, const GateOutcome<T, B>& a, const GateOutcomeGrad<T, B>& d) const {
    auto mark = ctx.mark();
    auto slope = slopes(ctx, a, {});
    B::for_rows(ctx, d.probabilities.extent(0), functor::TotalBackward<T, B>{slope, {a.valid}, d.probabilities});
  }

 private:
  template <class T, class B>
  View<T, 1, B> slopes(auto& ctx, const GateOutcome<T, B>& a, Out<T, 1, B> value) const {
    const Index experts = a.probabilities.extent(1);
    validate(experts);
    auto total = ctx.template scratch<T>(experts), slope = ctx.template scratch<T>(experts);
    functor::expert_totals(ctx, a, total);
    B::for_each(ctx, 1, functor::CvSquaredValue<T, B>{total, cv, T(weight), value, slope});
    return slope;
  }
};

}  // namespace gatefold
