#pragma once

#include <type_traits>

#include "gatefold/backend/lanes.hpp"
#include "gatefold/backend/math.hpp"
#include "gatefold/policy/hooks.hpp"

/// Activation functions. An activation is a struct with two static functions: `value(v)`, and its derivative
/// `slope(v)`. Both are templates over the type V of v, which is a scalar or a SIMD register.
///
/// To write your own activation, put `using functor::math::exp;` into the function and call `exp(v)`, which finds the
/// overload for V. The functions erf, log, sqrt, tanh, abs, reciprocal and where_positive work in the same way. An
/// activation that works only on scalars has `static constexpr bool scalar_only = true;` and is called with one value
/// at a time.
namespace gatefold {

/// The identity: no activation.
struct Identity {
  template <class V>
  GATEFOLD_HD static V value(V v) {
    return v;
  }
  template <class V>
  GATEFOLD_HD static V slope(V) {
    return V(1);
  }
};

/// The activation max(v, 0). It returns NaN if v is NaN. The slope at 0 and at NaN is 0.
struct Relu {
  template <class V>
  GATEFOLD_HD static V value(V v) {
    using functor::math::where_positive;
    return where_positive(-v, V(0), v);
  }
  template <class V>
  GATEFOLD_HD static V slope(V v) {
    using functor::math::where_positive;
    return where_positive(v, V(1), V(0));
  }
};

/// The exact GELU: v Φ(v), with Φ(v) = (1 + erf(v / √2)) / 2. Source: Hendrycks and Gimpel 2016, arXiv:1606.08415.
struct Gelu {
  template <class V>
  GATEFOLD_HD static V distribution(V v) {
    using functor::math::erf;
    return V(0.5) * (V(1) + erf(v * V(0.70710678118654752440)));
  }
  template <class V>
  GATEFOLD_HD static V value(V v) {
    return v * distribution(v);
  }
  template <class V>
  GATEFOLD_HD static V slope(V v) {
    using functor::math::exp;
    return distribution(v) + v * (exp(v * v * V(-0.5)) * V(0.39894228040143267794));
  }
};

/// The tanh form of GELU: v · sigmoid(2u), with u = √(2/π) (v + 0.044715 v³). Source: arXiv:1606.08415.
struct GeluTanh {
  template <class V>
  GATEFOLD_HD static V gate(V v) {
    using functor::math::exp;
    using functor::math::reciprocal;
    return reciprocal(V(1) + exp(v * (v * v * V(-0.07135481627260025) + V(-1.5957691216057308))));
  }
  template <class V>
  GATEFOLD_HD static V value(V v) {
    return v * gate(v);
  }
  template <class V>
  GATEFOLD_HD static V slope(V v) {
    const V g = gate(v);
    const V t = v * (g * (V(1) - g));  // 0 if v² overflows
    return g + (t * v) * (v * V(0.21406444881780075)) + t * V(1.5957691216057308);
  }
};

/// The activation v · sigmoid(v), also called swish. Source: Elfwing et al. 2017, arXiv:1702.03118.
struct Silu {
  template <class V>
  GATEFOLD_HD static V gate(V v) {
    using functor::math::exp;
    using functor::math::reciprocal;
    return reciprocal(V(1) + exp(-v));
  }
  template <class V>
  GATEFOLD_HD static V value(V v) {
    return v * gate(v);
  }
  template <class V>
  GATEFOLD_HD static V slope(V v) {
    const V g = gate(v);
    return g + v * (g * (V(1) - g));
  }
};

/// The activation max(v, 0)². It returns NaN if v is NaN. Source: So et al. 2021, arXiv:2109.08668 (Primer).
struct Relu2 {
  template <class V>
  GATEFOLD_HD static V value(V v) {
    const V positive = Relu::value(v);
    return positive * positive;
  }
  template <class V>
  GATEFOLD_HD static V slope(V v) {
    return V(2) * Relu::value(v);
  }
};

/// The activation c · sigmoid(1.702 c), with c = min(v, 7), of the first factor in gpt-oss (see GatedMlp). It returns
/// NaN if v is NaN. Its slope is 0 for v > 7. Source: GptOssExperts of transformers' modeling_gpt_oss.py, with the
/// default values of swiglu_alpha and swiglu_limit.
struct ClampedSilu {
  static constexpr double alpha = 1.702, limit = 7;
  template <class V>
  GATEFOLD_HD static V value(V v) {
    using functor::math::where_positive;
    const V c = where_positive(v - V(limit), V(limit), v);
    return c * Silu::gate(c * V(alpha));
  }
  template <class V>
  GATEFOLD_HD static V slope(V v) {
    using functor::math::where_positive;
    return where_positive(v - V(limit), V(0), Silu::slope(v * V(alpha)));
  }
};

/// The activation 1 + min(max(v, −7), 7) of the second factor in gpt-oss (see GatedMlp). It returns NaN if v is NaN.
/// Its slope is 0 for |v| > 7. Source: GptOssExperts of transformers' modeling_gpt_oss.py.
struct ClampedPlusOne {
  static constexpr double limit = 7;
  template <class V>
  GATEFOLD_HD static V value(V v) {
    using functor::math::where_positive;
    const V below = where_positive(v - V(limit), V(limit), v);
    return V(1) + where_positive(V(-limit) - v, V(-limit), below);
  }
  template <class V>
  GATEFOLD_HD static V slope(V v) {
    using functor::math::abs;
    using functor::math::where_positive;
    return where_positive(abs(v) - V(limit), V(0), V(1));
  }
};

/// The activation v³, which the theory of paper 003 uses. Source: Chen et al. 2022, arXiv:2208.02813.
struct Cubic {
  template <class V>
  GATEFOLD_HD static V value(V v) {
    return v * v * v;
  }
  template <class V>
  GATEFOLD_HD static V slope(V v) {
    return V(3) * (v * v);
  }
};

namespace detail_::policy {

/// True if the function `value` of an activation `Act` is not a template, so that it takes only scalars and no SIMD
/// registers.
template <class Act>
concept OfScalars = requires {
  requires std::is_function_v<std::remove_pointer_t<decltype(&Act::value)>>;
};

/// True if Act is an activation, and not a layer, branch or expert that also has a static function `value`.
template <class Act>
inline constexpr bool is_activation = requires(float v) {
  Act::value(v);
}
&&!requires(const Act act) { act.in_dim(); };

/// Returns true if Act is an activation. If it is not, a static_assert describes the mistake.
template <class Act>
constexpr bool check_activation() {
  GATEFOLD_EXPECT((requires(float v) { Act::value(v); }),
                  "gatefold: an activation (for example Gelu) needs static V value(V v), a template for any V; see "
                  "docs/how-to/extending.md#expert")
  GATEFOLD_EXPECT((!OfScalars<Act> || detail_::hook::activation::scalar_only<Act>()),
                  "gatefold: value(v) of an activation must also accept a register of values: make it a template for "
                  "any V, or declare static constexpr bool scalar_only = true; see docs/how-to/extending.md#expert")
  return true;
}
/// Returns true if an activation has a function `slope`, its derivative, which training needs. If it has none, a
/// static_assert reports this.
template <class Act>
constexpr bool check_slope() {
  GATEFOLD_EXPECT((requires(float v) { Act::slope(v); }),
                  "gatefold: an activation of an expert that is trained also needs its derivative, static V slope(V "
                  "v); see docs/how-to/extending.md#expert")
  return check_activation<Act>();
}

}  // namespace detail_::policy

template <class Act>
inline constexpr bool is_scalar_only =
    detail_::policy::check_activation<Act>() && detail_::hook::activation::scalar_only<Act>();

}  // namespace gatefold
