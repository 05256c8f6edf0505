#pragma once

#include <cmath>
#include <cstddef>
#include <limits>
#include <type_traits>

#include "gatefold/backend/cpu/instruction_set.hpp"
#include "gatefold/backend/cpu/packet.hpp"
#include "gatefold/backend/epilogue.hpp"
#include "gatefold/core/config.hpp"
#include "gatefold/core/types.hpp"

namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu {

/// A SIMD register of contiguous elements, with the arithmetic that epilogues and activations use. It holds one
/// element if the target has no vector unit.
///
/// Every operation is one fixed sequence of instructions. A product is never fused with a later sum, except in `madd`.
/// The same expression therefore gives the same bits in full registers, in tails and in every inlined copy.
template <class T>
class Register {
 public:
  using Packet = packet::Of<T>;
  static constexpr int size = packet::size<T>;  // number of lanes

  Register() = default;
  GATEFOLD_INLINE explicit Register(T value) : packet_(packet::filled(value)) {}
  /// Makes a register with `value`, converted to T, in every lane, for example Register<float>(0.5).
  template <class A, std::enable_if_t<std::is_arithmetic_v<A> && !std::is_same_v<A, T>, int> = 0>
  GATEFOLD_INLINE explicit Register(A value) : Register(static_cast<T>(value)) {}
  GATEFOLD_INLINE explicit Register(const Packet& packet) requires(!std::is_same_v<Packet, T>) : packet_(packet) {}
  GATEFOLD_INLINE const Packet& packet() const { return packet_; }

  GATEFOLD_INLINE static Register load(const T* p) { return Register(packet::load(p)); }
  /// Loads the first `count` elements and sets the other lanes to 0. Memory after these elements is not read.
  GATEFOLD_INLINE static Register load(const T* p, int count) { return count == size ? load(p) : load_first(p, count); }
  GATEFOLD_INLINE void store(T* p) const { packet::store(p, packet_); }
  /// Stores the first `count` elements. Memory after these elements is not written.
  GATEFOLD_INLINE void store(T* p, int count) const { count == size ? store(p) : store_first(p, count); }

  GATEFOLD_INLINE friend Register operator+(Register a, Register b) { return Register(a.packet_ + b.packet_); }
  GATEFOLD_INLINE friend Register operator-(Register a, Register b) { return Register(a.packet_ - b.packet_); }
  GATEFOLD_INLINE friend Register operator*(Register a, Register b) { return sealed(a.packet_ * b.packet_); }
  GATEFOLD_INLINE friend Register operator/(Register a, Register b) { return Register(a.packet_ / b.packet_); }
  GATEFOLD_INLINE friend Register operator+(Register a, T b) { return a + Register(b); }
  GATEFOLD_INLINE friend Register operator-(Register a, T b) { return a - Register(b); }
  GATEFOLD_INLINE friend Register operator*(Register a, T b) { return a * Register(b); }
  GATEFOLD_INLINE friend Register operator/(Register a, T b) { return a / Register(b); }
  GATEFOLD_INLINE friend Register operator+(T a, Register b) { return Register(a) + b; }
  GATEFOLD_INLINE friend Register operator-(T a, Register b) { return Register(a) - b; }
  GATEFOLD_INLINE friend Register operator*(T a, Register b) { return Register(a) * b; }
  GATEFOLD_INLINE friend Register operator/(T a, Register b) { return Register(a) / b; }
  GATEFOLD_INLINE Register operator-() const { return Register(T(0)) - *this; }
  GATEFOLD_INLINE Register& operator+=(Register b) { return *this = *this + b; }
  GATEFOLD_INLINE Register& operator-=(Register b) { return *this = *this - b; }
  GATEFOLD_INLINE Register& operator*=(Register b) { return *this = *this * b; }

  /// Returns a · b + c, rounded once if the target has a fused multiply-add instruction, and twice otherwise. All
  /// functions of a program that are compiled for the same target round in the same way.
  GATEFOLD_INLINE friend Register madd(Register a, Register b, Register c) {
    return Register(packet::madd<T>(a.packet_, b.packet_, c.packet_));
  }
  GATEFOLD_INLINE friend Register madd(Register a, Register b, T c) { return madd(a, b, Register(c)); }

  /// Returns, for each lane, a if v > 0, else b. NaN counts as not positive.
  GATEFOLD_INLINE friend Register where_positive(Register v, Register a, Register b) {
    return where_less(Register(T(0)), v, a, b);
  }

  /// Returns, for each lane, b if b > a, else a. NaN in b counts as not larger.
  GATEFOLD_INLINE friend Register larger(Register a, Register b) { return where_less(a, b, b, a); }
  /// Returns the first `count` lanes of v, and `other` in the remaining lanes.
  GATEFOLD_INLINE friend Register keep_first(int count, Register v, T other) {
    if (count == size) return v;
    return where_less(Register(packet::lane_numbers<T>()), Register(T(count)), v, Register(other));
  }
  /// Returns the sum of all lanes, added in an order that depends only on the target.
  GATEFOLD_INLINE T sum() const { return packet::sum<T>(packet_); }
  /// Returns the value of the largest lane.
  GATEFOLD_INLINE T largest() const { return packet::largest<T>(packet_); }

  /// Returns 1 / v, with an error of at most 1 ulp if the result is a normal number. For 0, infinities and NaN, returns
  /// the same value as a division.
  GATEFOLD_INLINE friend Register reciprocal(Register v) {
#if defined(EIGEN_VECTORIZE_AVX512)
    // Uses an approximation and one Newton step, because a division takes four times as long.
    if constexpr (packet::is<T, float, 64>) {
      const __m512 r = _mm512_maskz_rcp14_ps(packet::all16, v.packet_),
                   error = _mm512_fnmadd_ps(v.packet_, r, _mm512_set1_ps(1));
      return Register(
          _mm512_mask_fmadd_ps(r, _mm512_cmp_ps_mask(_mm512_abs_ps(error), _mm512_set1_ps(1), _CMP_LT_OQ), error, r));
    }
#endif
    return Register(T(1)) / v;
  }

  /// Returns e^v with an error of at most 2 ulp, or 0 if e^v is subnormal. In double, the result is 0 for v < -708.39
  /// and infinity for v > 709.78, slightly before e^v is subnormal or overflows. Infinities and NaN give the results of
  /// the standard library.
  friend Register exp(Register v) {
    if constexpr (std::is_same_v<T, float>) {
      return exp_float(v);
    } else {
      return exp_double(v);
    }
  }

  /// Returns the error function erf(v). In float the error is at most 2 ulp; in double std::erf is called for each
  /// lane.
  friend Register erf(Register v) {
    if constexpr (std::is_same_v<T, float>) {
      return erf_float(v);
    } else {
      return v.each([](T x) { return std::erf(x); });
    }
  }

  GATEFOLD_INLINE friend Register abs(Register v) { return Register(packet::abs<T>(v.packet_)); }
  friend Register log(Register v) {
    return v.each([](T x) { return std::log(x); });
  }
  friend Register tanh(Register v) {
    return v.each([](T x) { return std::tanh(x); });
  }
  /// Returns the square root, correctly rounded.
  GATEFOLD_INLINE friend Register sqrt(Register v) { return Register(packet::sqrt<T>(v.packet_)); }

  /// Returns a register whose lanes are f(x) for each lane x of this register.
  template <class F>
  Register each(const F& f) const {
    alignas(64) T all[std::size_t{size}];
    store(all);
    for (int i = 0; i < size; ++i) all[i] = f(all[i]);
    return load(all);
  }

 private:
  static Register load_first(const T* p, int count) {
#if defined(EIGEN_VECTORIZE_AVX512)
    if constexpr (packet::is<T, float, 64>) return Register(_mm512_maskz_loadu_ps(first<__mmask16>(count), p));
    if constexpr (packet::is<T, double, 64>) return Register(_mm512_maskz_loadu_pd(first<__mmask8>(count), p));
#endif
    alignas(64) T all[std::size_t{size}] = {};
    for (int i = 0; i < count; ++i) all[i] = p[i];
    return load(all);
  }
  void store_first(T* p, int count) const {
#if defined(EIGEN_VECTORIZE_AVX512)
    if constexpr (packet::is<T, float, 64>) return _mm512_mask_storeu_ps(p, first<__mmask16>(count), packet_);
    if constexpr (packet::is<T, double, 64>) return _mm512_mask_storeu_pd(p, first<__mmask8>(count), packet_);
#endif
    alignas(64) T all[std::size_t{size}];
    store(all);
    for (int i = 0; i < count; ++i) p[i] = all[i];
  }
#if defined(EIGEN_VECTORIZE_AVX512)
  template <class Mask>
  static Mask first(int count) {
    return static_cast<Mask>((1u << count) - 1);
  }
#endif
  // Returns, for each lane, a if x < y, else b. Eigen's functions are not used, because they would convert an AVX-512
  // mask to a whole register and back to a mask.
  GATEFOLD_INLINE static Register where_less(Register x, Register y, Register a, Register b) {
#if defined(EIGEN_VECTORIZE_AVX512)
    if constexpr (packet::is<T, float, 64>)
      return Register(_mm512_mask_blend_ps(_mm512_cmp_ps_mask(x.packet_, y.packet_, _CMP_LT_OQ), b.packet_, a.packet_));
    if constexpr (packet::is<T, double, 64>)
      return Register(_mm512_mask_blend_pd(_mm512_cmp_pd_mask(x.packet_, y.packet_, _CMP_LT_OQ), b.packet_, a.packet_));
#endif
    return Register(x.packet_ < y.packet_ ? a.packet_ : b.packet_);
  }

  // Returns p, and hides from the compiler how p was computed. The compiler then does not fuse a product with a sum,
  // and -ffast-math does not change a sum. See packet.hpp.
  GATEFOLD_INLINE static Register sealed(Packet p) { return Register(packet::sealed(p)); }

  // Computes e^v = 2^n e^r with n = round(v / ln 2) and r = v - n ln 2.
  //
  // If the result would be subnormal, it is 0 and is not computed. An instruction with a subnormal number takes a
  // hundred cycles, also in the products that read the result. A softmax over scores that are far apart would otherwise
  // have many subnormal numbers.
  static Register exp_float(Register v) {
    const Register low(T(-87.33654)), high(T(105)), zero(T(0));
#if defined(EIGEN_VECTORIZE_AVX512)
    if constexpr (packet::is<T, float, 64>) {
      const __mmask16 live = _mm512_cmp_ps_mask(v.packet_, low.packet_, _CMP_NLT_UQ);
      // Computes min(v, high), but returns v if v is NaN.
      const Register x(_mm512_maskz_min_ps(live, high.packet_, v.packet_)), n = whole(x);
      return Register(_mm512_maskz_scalef_ps(live, exp_of_rest(x, n).packet_, n.packet_));
    }
#endif
    const Register x(packet::min<T>(where_less(v, low, zero, v).packet_, high.packet_)), n = whole(x);
    return where_less(v, low, zero, Register(packet::scaled<T>(exp_of_rest(x, n).packet_, n.packet_)));
  }
  // Returns round(x / ln 2). The sum of x / ln 2 and 1.5 · 2^23 is a float so large that it is rounded to an integer.
  GATEFOLD_INLINE static Register whole(Register x) {
    const Register large(T(12582912)), sum = sealed(madd(x, Register(T(1.44269504088896341)), large).packet_);
    return sealed((sum - large).packet_);
  }
  // Returns e^r for r = x - n ln 2, computed as 1 + r + r² p(r). The constant ln 2 is the sum of two floats, for
  // accuracy. p is a minimax polynomial (Lawson's algorithm in 40 digits) with a relative error of 3.1e-9 before
  // rounding.
  static Register exp_of_rest(Register x, Register n) {
    const Register first = sealed(madd(n, Register(T(-0.693115234375)), x).packet_),
                   r = madd(n, Register(T(-3.1946184945309415e-05)), first);
    Register p(T(0.0013814462027835117));
    for (double c : {0.008368780883103031, 0.041668394316207585, 0.16666520102736102, 0.49999993411976607, 1.0, 1.0})
      p = madd(p, r, T(c));
    return p;
  }

  // Computes e^v in double like exp of the Cephes library: e^v = 2^n e^g with n = floor(v / ln 2 + 1/2) and g = v - n
  // ln 2. The constant ln 2 is the sum of two doubles. With polynomials p and q, e^g = 1 + 2 g p(g²) / (q(g²) - g
  // p(g²)).
  static Register exp_double(Register v) {
    const Register low(T(-708.39)), high(T(709.78)), zero(T(0)), infinity(std::numeric_limits<T>::infinity());
    const Register x(packet::min<T>(where_less(v, low, zero, v).packet_, high.packet_));
    const Register large(T(0x1.8p52)), t = madd(x, Register(T(1.4426950408889634074)), T(0.5));
    const Register nearest = sealed((sealed((t + large).packet_) - large).packet_),
                   n = where_less(t, nearest, nearest - T(1), nearest);
    const Register first = sealed(madd(n, Register(T(-0.693145751953125)), x).packet_),
                   g = madd(n, Register(T(-1.42860682030941723212e-6)), first), s = g * g;
    Register p(T(1.26177193074810590878e-4)), q(T(3.00198505138664455042e-6));
    for (double c : {3.02994407707441961300e-2, 9.99999999999999999910e-1}) p = madd(p, s, T(c));
    for (double c : {2.52448340349684104192e-3, 2.27265548208155028766e-1, 2.00000000000000000009e0})
      q = madd(q, s, T(c));
    p = p * g;
    const Register e = madd(Register(T(2)), p / (q - p), T(1));
    return where_less(v, low, zero, where_less(high, v, infinity, Register(packet::scaled<T>(e.packet_, n.packet_))));
  }

  // Computes the error function erf(v) with one of two minimax polynomials p and q (Lawson's algorithm in 40 digits),
  // with relative errors of 1.7e-8 and 3e-9 before rounding:
  //   t <= 0.9277:      erf(v) = v + v p(v²)
  //   t > 0.9277:       erf(v) = ±(1 - exp(t q(t) - t)),   t = min(|v|, 4)
  static Register erf_float(Register v) {
    const Register t(packet::min<T>(packet::abs<T>(v.packet_), packet::filled(T(4)))), s = v * v;
    Register p(T(-0.0005964089657520933));
    for (double c :
         {0.004987971885569466, -0.026763102211839064, 0.11281720496699402, -0.376124846961212, 0.12837914822604066})
      p = madd(p, s, T(c));
    Register q(T(0.0002137262286482934));
    for (double c :
         {-0.0032128159869432493, 0.02288307809266469, -0.10525105858774121, -0.6357265387951567, -0.12851191657615602})
      q = madd(q, t, T(c));
    const Register large = 1 - exp(madd(q, t, -t));
    return where_less(Register(T(0.927734375)), abs(v), where_positive(v, large, -large), madd(v, p, v));
  }

  Packet packet_;
};

}  // namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu
