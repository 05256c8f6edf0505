#pragma once

#include "gatefold/policy/options.hpp"
#include "gatefold/tensor/view.hpp"

/// The squared coefficient of variation (variance divided by squared mean) of one number per expert. The auxiliary
/// losses Importance and Load use it.
namespace gatefold {

/// Options of the squared coefficient of variation CV² of a vector v, which has one number for each of E experts.
///
///     CV²(v) = (1/(E − ddof)) Σ_e (v_e − m)² / (m² + epsilon),   m = (1/E) Σ_e v_e                        (1)
///
/// The value is 0 if E <= ddof or if m = epsilon = 0.
/// Source: the defaults ddof = 0 and epsilon = 0 are those of the code of V-MoE (Riquelme et al. 2021,
/// arXiv:2106.05974). The options of `shazeer` are from tensor2tensor, the code of Shazeer et al. 2017
/// (arXiv:1701.06538). The options of `fastmoe`, with the unbiased variance, are from FastMoE.
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

namespace functor {

/// Writes weight · CV²(v), with the squared coefficient of variation of v, to `value`, unless that view is empty.
/// Writes its derivative by v[e] to slope[e].
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
