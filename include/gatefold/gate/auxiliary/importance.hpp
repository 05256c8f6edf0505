#pragma once

#include "gatefold/gate/auxiliary/balance_loss.hpp"
#include "gatefold/policy/options.hpp"
#include "gatefold/tensor/view.hpp"

namespace gatefold {

GATEFOLD_FUNCTORS((class T, class B), CvSquaredValue);

/// Options of the squared coefficient of variation CV² of a vector v, which has one number for each of E experts.
///
///     CV²(v) = (1/(E − ddof)) Σ_e (v_e − m)² / (m² + epsilon),   m = (1/E) Σ_e v_e                        (1)
///
/// The value is 0 if E <= ddof or if m = epsilon = 0.
/// Source: the defaults ddof = 0 and epsilon = 0 are from the code of V-MoE (Riquelme et al. 2021, arXiv:2106.05974).
/// The options of `shazeer` are from tensor2tensor, the code of Shazeer et al. 2017 (arXiv:1701.06538). The options of
/// `fastmoe`, with the unbiased variance, are from FastMoE.
struct CvSquared {
  Index ddof = 0;
  double epsilon = 0;

  static CvSquared shazeer() { return {.ddof = 0, .epsilon = 1e-10}; }
  static CvSquared fastmoe() { return {.ddof = 1, .epsilon = 1e-10}; }
  void validate(const char* where) const {
    expect(ddof >= 0, where, "cv.ddof", "at least 0", ddof);
    expect(epsilon >= 0, where, "cv.epsilon", "at least 0", epsilon);
    expect_finite(where, "cv.epsilon", epsilon);
  }
};

/// An auxiliary loss that rewards an even importance of the experts. The importance of an expert is the sum of its
/// probabilities over all items.
///
///     loss = weight · CV²(v),   v_e = Σ_n q[n,e]                                                        (1)
///
/// CV² is the squared coefficient of variation (CvSquared), and q[n,e] the probability of expert e for item n, without
/// noise. The loss is 0 at perfect balance.
/// Source: Riquelme et al. 2021, arXiv:2106.05974, appendix on auxiliary losses. Shazeer et al. 2017, arXiv:1701.06538,
/// eq. (6)-(7), sum the weights of the picks instead of q. `shazeer()` sets weight to 0.1, and takes the options of CV²
/// from the code of Shazeer et al.; its v_e is still the sum of q.
/// @throws ArgumentError unless weight and cv.epsilon are finite, and cv.ddof and cv.epsilon are at least 0
/// @cost  N·E reads
/// @order v is summed in double, on the CPU in the order of the items
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

namespace functor {

/// Writes weight · CV²(v) to `value`, unless that view is empty. CV² is the squared coefficient of variation. Writes
/// the derivative of weight · CV²(v) by v[e] to slope[e].
template <class T, class B>
struct CvSquaredValue {
  View<const T, 1, B> v;
  CvSquared cv;
  T weight;
  View<T, 1, B> value, slope;

  GATEFOLD_HD void operator()(Index) const {
    const Index experts = v.size();
    T mean = 0, spread = 0;
    for (Index e = 0; e < experts; ++e) mean += v(e);
    mean /= T(experts);
    for (Index e = 0; e < experts; ++e) spread += (v(e) - mean) * (v(e) - mean);
    const T square = mean * mean + T(cv.epsilon);
    const bool defined = experts > cv.ddof && square != 0;
    const T scale = defined ? weight / (T(experts - cv.ddof) * square) : T(0);
    for (Index e = 0; e < experts; ++e)
      slope(e) = defined ? 2 * scale * (v(e) - mean - spread * mean / (square * T(experts))) : T(0);
    if (value.data()) value(0) = defined ? scale * spread : T(0);
  }
};

}  // namespace functor

}  // namespace gatefold
