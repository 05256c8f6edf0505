#include "gatefold/papers/pgd.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "support/larger.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

constexpr Index images = 3, pixels = 7;
template <class T>
using Rows = Tensor<T, 2, Cpu>;

template <class T>
Rows<T> pixels_of(Cpu::Context& ctx) {
  Rows<T> x(images, pixels);
  fill_uniform(ctx, Seed{1}, 0, 1, x);
  x(0, 0) = 0;  // 0 and 1 are the ends of the range, which no step may leave
  x(0, 1) = 1;
  return x;
}
/// The loss Σ c y with given c. Its gradient is c everywhere.
template <class T>
struct Constant {
  const Rows<T>& c;
  Cpu::Context& ctx;
  int calls = 0;
  void operator()(View<const T, 2, Cpu>, View<T, 2, Cpu> dy) {
    ++calls;
    copy(ctx, c, dy);
  }
};
double sign(double v) { return v > 0 ? 1 : v < 0 ? -1 : 0; }

}  // namespace

TEST_CASE_TEMPLATE("Pgd (2), (3): one step follows the gradient's sign, clamped", T, float, double) {
  Cpu::Context ctx(2);
  const Rows<T> x = pixels_of<T>(ctx);
  Rows<T> c(images, pixels), y(images, pixels);
  fill_uniform(ctx, Seed{2}, -1, 1, c);
  c(0, 0) = T(-1);
  c(0, 1) = T(1);
  c(1, 2) = 0;
  Constant<T> gradient{c, ctx};
  Pgd::fgsm({.epsilon = 0.1})(ctx, gradient, x.view(), Noise{}, y);
  CHECK(gradient.calls == 1);
  for (Index i = 0; i < x.size(); ++i) {
    const double moved = static_cast<double>(x.data()[i]) + 0.1 * sign(static_cast<double>(c.data()[i]));
    CHECK(static_cast<double>(y.data()[i]) == doctest::Approx(std::clamp(moved, 0.0, 1.0)).epsilon(1e-6));
  }
  CHECK(y(0, 0) == 0);
  CHECK(y(0, 1) == 1);
  CHECK(y(1, 2) == x(1, 2));  // sign 0 = 0
}

TEST_CASE("Pgd (1) to (3): many steps equal a loop") {
  Cpu::Context ctx(2);
  const Rows<double> x = pixels_of<double>(ctx);
  Rows<double> y(images, pixels);
  // The maximum of the loss Σ sin(9 y) is a point that steps pass and return to.
  const auto gradient = [&](View<const double, 2, Cpu> at, View<double, 2, Cpu> d) {
    for (Index i = 0; i < at.size(); ++i) d.data()[i] = 9 * std::cos(9 * at.data()[i]);
  };
  const Pgd attack{.epsilon = 0.2, .step = 0.07, .steps = 6, .low = 0.05, .high = 0.9};
  for (const bool anywhere : {false, true}) {
    CAPTURE(anywhere);
    const Noise start = anywhere ? Noise{Random{Seed{4}, 2}} : Noise{};
    attack(ctx, gradient, x.view(), start, y);
    double farthest = 0;
    for (Index i = 0; i < x.size(); ++i) {
      const double from = x.data()[i];
      const auto nearest = [&](double v) { return std::clamp(std::clamp(v, from - 0.2, from + 0.2), 0.05, 0.9); };
      double at = from;
      if (anywhere) at = nearest(from + 0.2 * (2 * uniform<double>(Seed{4}, 2, static_cast<std::uint64_t>(i)) - 1));
      for (int t = 0; t < 6; ++t) at = nearest(at + 0.07 * sign(std::cos(9 * at)));
      CHECK(y.data()[i] == doctest::Approx(at).epsilon(1e-12));
      farthest = support::larger(farthest, std::abs(y.data()[i] - from));
    }
    CHECK(farthest > 0.19);
  }
}

TEST_CASE("Pgd (2): a NaN gradient changes only its own element") {
  Cpu::Context ctx(1);
  const Rows<float> x = pixels_of<float>(ctx);
  Rows<float> c(images, pixels), y(images, pixels);
  fill(ctx, c.view(), 1);
  c(1, 3) = std::nanf("");
  Pgd{.epsilon = 0.1, .step = 0.05, .steps = 3}(ctx, Constant<float>{c, ctx}, x.view(), Noise{}, y);
  for (Index n = 0; n < images; ++n)
    for (Index d = 0; d < pixels; ++d) CHECK(std::isnan(y(n, d)) == (n == 1 && d == 3));
}

TEST_CASE("Pgd: random starts are within epsilon, equal on any threads") {
  Cpu::Context one(1), three(3);
  const Rows<float> x = pixels_of<float>(one);
  Rows<float> zero(images, pixels), a(images, pixels), b(images, pixels), other(images, pixels);
  fill(one, zero.view(), 0);
  const auto attack = [&](Cpu::Context& ctx, std::uint64_t seed, Rows<float>& y) {
    Pgd{.epsilon = 0.25, .low = -1, .high = 2}(ctx, Constant<float>{zero, ctx}, x.view(), Noise{Random{Seed{seed}}}, y);
  };
  attack(one, 1, a);
  attack(three, 1, b);
  attack(one, 2, other);
  CHECK(same_bits(values(a), values(b)));
  CHECK_FALSE(same_bits(values(a), values(other)));
  double least = 0, most = 0;
  for (Index i = 0; i < x.size(); ++i) {
    const double moved = static_cast<double>(a.data()[i]) - static_cast<double>(x.data()[i]);
    CHECK(std::abs(moved) <= 0.25 + 1e-6);
    least = std::min(least, moved);
    most = std::max(most, moved);
  }
  CHECK(least < -0.1);
  CHECK(most > 0.1);
}

TEST_CASE("Pgd: wrong options and shapes throw") {
  Cpu::Context ctx(1);
  const Rows<double> x = pixels_of<double>(ctx);
  Rows<double> y(images, pixels), narrow(images, pixels - 1);
  const auto says = [&](const Pgd& attack, Rows<double>& to) {
    return message_of([&] { attack(ctx, Constant<double>{x, ctx}, x.view(), Noise{}, to); });
  };
  CHECK(says({.epsilon = -1}, y) == "Pgd: epsilon: expected a finite number, at least 0, got -1");
  CHECK(says({.epsilon = infinity}, y) == "Pgd: epsilon: expected a finite number, at least 0, got inf");
  CHECK(says(Pgd::fgsm({.epsilon = 0}), y) == "no ArgumentError");
  CHECK(says({.step = 0}, y) == "Pgd: step: expected a finite number above 0 (0 only if epsilon is 0), got 0");
  CHECK(says({.step = quiet_nan}, y) ==
        "Pgd: step: expected a finite number above 0 (0 only if epsilon is 0), got nan");
  CHECK(says({.steps = 0}, y) == "Pgd: steps: expected at least 1, got 0");
  CHECK(says({.low = 2}, y) == "Pgd: high: expected at least low = 2, got 1");
  Rows<float> in_float(images, pixels), to(images, pixels);
  fill(ctx, in_float.view(), 0.5f);
  CHECK(message_of([&] {
          Pgd{.step = 1e39}(ctx, Constant<float>{in_float, ctx}, in_float.view(), Noise{}, to);
        }) ==
        "Pgd: the larger of epsilon and step: expected at most 3.40282e+38 (the largest number of the element type), "
        "got 1e+39");
  CHECK(says({}, narrow) == "Pgd: y: expected [3, 7], got [3, 6]");
  CHECK(message_of([&] { Pgd{}(ctx, Constant<double>{x, ctx}, y.view(), Noise{}, y); }) != "no ArgumentError");
}
