// Epilogues on neighbouring columns: they give the values of single columns and access nothing past the count.
#include "gatefold/backend/cuda/epilogue.cuh"

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "gatefold/expert/activation.hpp"
#include "support/device_array.cuh"

using namespace gatefold;
using namespace gatefold::detail_::device;

namespace {

/// Returns act(v) · 2 + bias − 1 / v, and stores v itself rounded to bfloat16.
template <class Act, bool ScalarOnly = false>
struct Compose {
  const float* bias;
  Bfloat16* kept;
  template <class A>
  GATEFOLD_HD typename A::Value operator()(const A& at, Index, Index, Index j, typename A::Value v) const {
    at.store(kept + j, v);
    return Act::value(v) * 2.f + at.load(bias + j) - 1.f / v;
  }
};
template <class Act>
struct Compose<Act, true> : Compose<Act> {
  static constexpr bool scalar_only = true;
};
struct Divide {
  template <class A>
  GATEFOLD_HD typename A::Value operator()(const A&, Index, Index, Index, typename A::Value v,
                                           typename A::Value w) const {
    return v / w;
  }
};
/// An epilogue of a user for single values only.
struct Values {
  __device__ float operator()(const OneElement<float>&, Index, Index s, Index j, float v) const {
    return v + static_cast<float>(10 * s + j);
  }
};

template <int Matrices, int Size, class C, class E>
static __global__ void run(E epilogue, const float* first, const float* second, Index j, int count, C* c) {
  const ElementsAccess<Size> at{count};
  Elements<Size> sums[Matrices];
  sums[0] = at.load(first + j);
  if constexpr (Matrices == 2) sums[1] = at.load(second + j);
  at.store(c + j, finished_elements<Matrices>(epilogue, at, Index(0), Index(3), j, sums));
}

/// Checks that the columns [j, j + count) of 24 have the values of `host`, and that the other columns do not change.
template <int Matrices, class C, class E, class Host>
void check(Cuda::Context& ctx, const E& epilogue, const std::vector<float>& v, const std::vector<float>& w,
           const Host& host, double tolerance) {
  test::DeviceArray<float> first(ctx, v), second(ctx, w);
  for (const Index j : {0, 8, 3})
    for (const int count : {8, 5, 2, 1}) {
      CAPTURE(j);
      CAPTURE(count);
      test::DeviceArray<C> c(ctx, std::vector<C>(24, C(Bfloat16::from(-77))));
      if (count <= 2) {
        run<Matrices, 2><<<1, 1, 0, ctx.stream()>>>(epilogue, first.data(), second.data(), j, count, c.data());
      } else {
        run<Matrices, 8><<<1, 1, 0, ctx.stream()>>>(epilogue, first.data(), second.data(), j, count, c.data());
      }
      expect_launched("run");
      const auto got = c.values();
      for (Index i = 0; i < 24; ++i) {
        const auto at = static_cast<std::size_t>(i);
        const double expected = i >= j && i < j + count ? host(i) : -77;
        CHECK(std::abs(static_cast<double>(static_cast<float>(got[at])) - expected) <= tolerance * std::abs(expected));
      }
    }
}

template <class Act, bool ScalarOnly = false>
void check_activation() {
  Cuda::Context ctx;
  std::vector<float> v = test::random_vector<float>(24, 1), bias = test::random_vector<float>(24, 2);
  for (float& x : v) x += x < 0 ? -0.5f : 0.5f;  // no divisions by almost 0
  test::DeviceArray<float> on_bias(ctx, bias);
  test::DeviceArray<Bfloat16> kept(ctx, std::vector<Bfloat16>(24));
  const auto host = [&](Index i) {
    const double x = static_cast<double>(v[static_cast<std::size_t>(i)]);
    return Act::value(x) * 2 + static_cast<double>(bias[static_cast<std::size_t>(i)]) - 1 / x;
  };
  using E = Compose<Act, ScalarOnly>;
  static_assert(ElementsEpilogue<E, 1> == !ScalarOnly);
  if constexpr (ScalarOnly) static_assert(E::scalar_only);
  // The tolerance allows for float instead of double: a difference of terms up to 4 loses some bits.
  check<1, float>(ctx, E{on_bias.data(), kept.data()}, v, v, host, 1e-4);
  check<1, Bfloat16>(ctx, E{on_bias.data(), kept.data()}, v, v, host, 0x1p-8 + 1e-4);  // half the last of 8 bits
  const auto rounded = kept.values();
  for (Index i = 0; i < 16; ++i)
    CHECK(rounded[static_cast<std::size_t>(i)].bits == Bfloat16::from(v[static_cast<std::size_t>(i)]).bits);
}

/// f(v) for each function f that activations may call.
struct Functions {
  Index which;
  template <class A>
  GATEFOLD_HD typename A::Value operator()(const A&, Index, Index, Index, typename A::Value v) const {
    using functor::math::abs, functor::math::erf, functor::math::exp, functor::math::log, functor::math::reciprocal,
        functor::math::sqrt, functor::math::tanh, functor::math::where_positive;
    typename A::Value r = v;
    switch (which) {
      case 0:
        return exp(v);
      case 1:
        return erf(v);
      case 2:
        return log(abs(v));
      case 3:
        return sqrt(abs(v));
      case 4:
        return tanh(v);
      case 5:
        return reciprocal(v);
      case 6:
        return where_positive(v, 2.f * v, 3.f - v);
      default:
        r += v;
        r *= v;
        r -= 1.f + v;
        r /= v + 3.f;
        return -r;
    }
  }
};

}  // namespace

TEST_CASE("cuda: an epilogue of eight columns equals single columns") {
  check_activation<Gelu>();
  check_activation<Silu>();
  check_activation<Relu>();
}

TEST_CASE("cuda: a scalar epilogue is called for single values") {
  check_activation<Gelu, true>();
  Cuda::Context ctx;
  const auto v = test::random_vector<float>(24, 1);
  static_assert(!ElementsEpilogue<Values, 1>);
  check<1, float>(
      ctx, Values{}, v, v, [&](Index i) { return double(v[static_cast<std::size_t>(i)] + float(30 + i)); }, 1e-6);
}

TEST_CASE("cuda: an epilogue of two sums receives both sums") {
  Cuda::Context ctx;
  auto v = test::random_vector<float>(24, 1), w = test::random_vector<float>(24, 2);
  for (float& x : w) x += 2;
  check<2, float>(
      ctx, Divide{}, v, w,
      [&](Index i) { return double(v[static_cast<std::size_t>(i)]) / double(w[static_cast<std::size_t>(i)]); }, 1e-6);
}

TEST_CASE("cuda: every activation function on vectors equals single values") {
  Cuda::Context ctx;
  auto v = test::random_vector<float>(24, 1);
  for (float& x : v) x += x < 0 ? -0.5f : 0.5f;
  for (Index which = 0; which < 8; ++which) {
    CAPTURE(which);
    const auto host = [&](Index i) {
      const double x = static_cast<double>(v[static_cast<std::size_t>(i)]);
      switch (which) {
        case 0:
          return std::exp(x);
        case 1:
          return std::erf(x);
        case 2:
          return std::log(std::abs(x));
        case 3:
          return std::sqrt(std::abs(x));
        case 4:
          return std::tanh(x);
        case 5:
          return 1 / x;
        case 6:
          return x > 0 ? 2 * x : 3 - x;
        default:
          return -((2 * x * x - 1 - x) / (x + 3));
      }
    };
    check<1, float>(ctx, Functions{which}, v, v, host, 1e-4);  // float, not double; a log near 0 loses some bits
  }
}
