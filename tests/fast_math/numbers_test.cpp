#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "gatefold/gatefold.hpp"

// Compiled with -ffast-math, which lets a compiler replace x + a - b by x + (a - b). Functions that round by such sums
// must still be right. On x86-64 this test uses the base instruction set, in which multiply-adds are also operators
// that the compiler may change.
#if !defined(__FINITE_MATH_ONLY__) || !__FINITE_MATH_ONLY__
#error "this test says something only when it is compiled with -ffast-math"
#endif

using namespace gatefold;

namespace {

/// Returns the largest relative error of f for arguments between `from` and `to`, in epsilons.
template <class T, class F>
double worst(const F& f, long double (*exact)(long double), double from, double to) {
  using V = cpu::Register<T>;
  constexpr int steps = 20011;
  double most = 0;
  for (int i = 0; i < steps; ++i) {
    volatile T x = static_cast<T>(from + (to - from) * i / steps);
    T lanes[V::size];
    f(V(T(x))).store(lanes);
    volatile long double expected = exact(static_cast<long double>(x)), got = lanes[V::size - 1];
    const double error = static_cast<double>(std::fabs(got / expected - 1)) / std::numeric_limits<T>::epsilon();
    if (!(error <= most)) most = error;
  }
  return most;
}

}  // namespace

TEST_CASE_TEMPLATE("fast math: exp, erf, sqrt are accurate to 4 epsilon", T, float, double) {
  using V = cpu::Register<T>;
  const auto exponential = [](long double x) { return std::exp(x); };
  const double low = sizeof(T) == 4 ? -87.3 : -708, high = sizeof(T) == 4 ? 88.3 : 709;
  CHECK(worst<T>([](V v) { return exp(v); }, exponential, low, high) <= 4);
  CHECK(worst<T>([](V v) { return exp(v); }, exponential, -1, 1) <= 4);
  CHECK(worst<T>([](V v) { return erf(v); }, [](long double x) { return std::erf(x); }, -5, 5) <= 4);
  CHECK(worst<T>([](V v) { return sqrt(v); }, [](long double x) { return std::sqrt(x); }, 0.1, 100) <= 4);
}

TEST_CASE_TEMPLATE("fast math: Mixture equals plain loops", T, float, double) {
  Cpu::Context ctx(1);
  const Mixture mixture{SoftmaxTopK{.scores = {.model_dim = 5, .experts = 4}, .selection = {.k = 4}},
                        Mlp<Gelu>{.model_dim = 5, .hidden_dim = 7}};
  const auto params = mixture.init<T, Cpu>(ctx, Seed{1});
  constexpr Index items = 9;
  const auto x = uniform_tensor<T>(ctx, Seed{2}, 3.0, items, 5);
  Tensor<T, 2, Cpu> y(items, 5);
  infer(mixture, ctx, params, x, y);
  const auto& gate = params.gate.scores;
  const auto& p = params.expert;
  for (Index n = 0; n < items; ++n) {
    double logit[4], total = 0, expected[5] = {};
    for (Index e = 0; e < 4; ++e) {
      logit[e] = static_cast<double>(gate.bias(e));
      for (Index d = 0; d < 5; ++d) logit[e] += static_cast<double>(x(n, d)) * static_cast<double>(gate.weight(d, e));
      total += std::exp(logit[e]);
    }
    for (Index e = 0; e < 4; ++e)
      for (Index h = 0; h < 7; ++h) {
        double v = static_cast<double>(p.up_bias(e, h));
        for (Index d = 0; d < 5; ++d) v += static_cast<double>(x(n, d)) * static_cast<double>(p.up(e, d, h));
        const double a = 0.5 * v * (1 + std::erf(v * std::sqrt(0.5)));
        for (Index d = 0; d < 5; ++d)
          expected[d] += std::exp(logit[e]) / total * a * static_cast<double>(p.down(e, h, d));
      }
    for (Index e = 0; e < 4; ++e)
      for (Index d = 0; d < 5; ++d) expected[d] += std::exp(logit[e]) / total * static_cast<double>(p.down_bias(e, d));
    for (Index d = 0; d < 5; ++d) {
      volatile double off = std::fabs(static_cast<double>(y(n, d)) - expected[d]);
      CHECK(off <= (sizeof(T) == 4 ? 1e-5 : 1e-13));
    }
  }
}
