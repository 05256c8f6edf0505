#include "gatefold/gate/scores/normalized_rows.hpp"

#include <doctest/doctest.h>

#include <cmath>

#include "gatefold/check/gradient.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

constexpr UnitNorm forms[] = {UnitNorm::clamped, UnitNorm::outside, UnitNorm::inside, UnitNorm::none};

double length_of(UnitNorm form, double epsilon, double length) {
  switch (form) {
    case UnitNorm::clamped:
      return length;
    case UnitNorm::outside:
      return length + epsilon;
    case UnitNorm::inside:
      return std::sqrt(length * length + epsilon);
    case UnitNorm::none:
      return 1;
  }
  return 0;
}

template <class T>
Tensor<T, 2, Cpu> unit(const Tensor<T, 2, Cpu>& x, UnitNorm form, double epsilon, const T* scale = nullptr) {
  Cpu::Context ctx(1);
  Tensor<T, 2, Cpu> out(x.extent(0), x.extent(1));
  Cpu::for_rows(ctx, x.extent(0), functor::UnitRows<T, Cpu>{x, {form, T(epsilon)}, scale, out});
  return out;
}

}  // namespace

TEST_CASE("UnitNorm (1)-(4): every form equals its formula") {
  const auto x = matrix<double>({{3, 4, 0}, {0.1, -0.2, 0.3}, {0, 0, 0}});
  const double epsilon = 0.2, scale = 1.5;
  for (const UnitNorm form : forms) {
    const auto out = unit(x, form, epsilon, &scale);
    for (Index n = 0; n < 3; ++n) {
      double square = 0;
      for (Index d = 0; d < 3; ++d) square += x(n, d) * x(n, d);
      for (Index d = 0; d < 3; ++d)
        CHECK(out(n, d) == doctest::Approx(scale * x(n, d) / (n == 2 ? 1 : length_of(form, epsilon, std::sqrt(square))))
                               .epsilon(1e-13));
    }
  }
}

TEST_CASE("UnitNorm (1): a row within epsilon is 0 without gradient") {
  Cpu::Context ctx(1);
  const auto x = matrix<double>({{0.3, 0.4}, {0, 0}});
  CHECK(values(unit(x, UnitNorm::clamped, 0.5)) == std::vector<double>{0, 0, 0, 0});
  auto dx = constant_tensor<double>(ctx, 7, 2, 2);
  Cpu::for_rows(ctx, 2, functor::UnitRowsBackward<double, Cpu>{x, {UnitNorm::clamped, 0.5}, nullptr, x, dx});
  CHECK(values(dx) == std::vector<double>{7, 7, 7, 7});
}

TEST_CASE("UnitNorm: zero and huge rows stay finite, forward and backward") {
  Cpu::Context ctx(1);
  const auto x = matrix<float>({{0, 0}, {1e-30, 0}, {1e15, 1e15}});
  const auto dunit = matrix<float>({{1, 2}, {1, 2}, {1, 2}});
  for (const UnitNorm form : forms) {
    auto dx = constant_tensor<float>(ctx, 0, 3, 2);
    Cpu::for_rows(ctx, 3, functor::UnitRowsBackward<float, Cpu>{x, {form, 1e-6f}, nullptr, dunit, dx});
    for (const double v : values(unit(x, form, 1e-6), dx)) CHECK(std::isfinite(v));
  }
}

TEST_CASE("UnitNorm: the gradient scales with the inverse row length") {
  Cpu::Context ctx(1);
  for (const float r : {1e-10f, 1.0f, 1e14f, 1e18f}) {
    const auto x = matrix<float>({{0.6f * r, 0.8f * r}}), dunit = matrix<float>({{1, 0}});
    for (const UnitNorm form : {UnitNorm::clamped, UnitNorm::outside, UnitNorm::inside}) {
      auto dx = constant_tensor<float>(ctx, 0, 1, 2);
      Cpu::for_rows(ctx, 1, functor::UnitRowsBackward<float, Cpu>{x, {form, 1e-30f}, nullptr, dunit, dx});
      CHECK(dx(0, 0) * r == doctest::Approx(0.64).epsilon(1e-6));
      CHECK(dx(0, 1) * r == doctest::Approx(-0.48).epsilon(1e-6));
    }
  }
}

TEST_CASE("UnitNorm: gradients of rows and scale equal finite differences") {
  Cpu::Context ctx(1);
  for (const UnitNorm form : forms) {
    auto x = uniform_tensor<double>(ctx, Seed{1}, 1, 4, 3);
    const auto dunit = uniform_tensor<double>(ctx, Seed{2}, 1, 4, 3);
    auto dx = constant_tensor<double>(ctx, 0, 4, 3);
    double scale = 0.7, dscale = 0;
    const functor::UnitFactor<double> factor{form, 0.01};
    Cpu::for_rows(ctx, 4, functor::UnitRowsBackward<double, Cpu>{x, factor, &scale, dunit, dx});
    Cpu::reduce<double>(ctx, 4, functor::UnitRowsScale<double, Cpu>{x, factor, dunit}, &dscale);
    const auto report = check::compare_gradients(
        {{"x", x.data(), dx.data(), x.size()}, {"scale", &scale, &dscale, 1}},
        [&] {
          const auto out = unit(x, form, 0.01, &scale);
          double f = 0;
          for (Index i = 0; i < out.size(); ++i) f += out.data()[i] * dunit.data()[i];
          return f;
        },
        [] { return 0; }, {});
    CHECK_MESSAGE(report, report.str());
  }
}
