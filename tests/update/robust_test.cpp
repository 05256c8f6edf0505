#include "gatefold/update/robust.hpp"

#include <doctest/doctest.h>

#include "gatefold/core/philox.hpp"
#include "gatefold/update/plain.hpp"
#include "support/rules.hpp"

using namespace gatefold;
using namespace gatefold::support;

TEST_CASE("Robust (1): look-ahead momentum accumulates over four layers") {
  Cpu::Context ctx(1);
  const update::Robust rule{.p = 0.5, .k = 3, .l = 0.8};
  const double gamma = 3 * 0.25 * 1.5 / 0.8, mu = 3 * 0.125 / 2, alpha = 0.125 / (2 * 0.25 * 1.5);
  Numbers q(12, 0);
  auto p = follow(ctx, rule, [&](int, const Numbers& x, const Evaluate& u) {
    q = mu * q + u(x + alpha * gamma * q);
    return x + gamma * q;
  });
  CHECK(difference(values(p.carry), q) <= 1e-14);
}

TEST_CASE("Robust (1): equals equation (18) of the paper") {
  Cpu::Context ctx(1);
  const update::Robust rule{.p = 0.4, .k = 2, .l = 1.5};
  Numbers before;
  follow(ctx, rule, [&](int t, const Numbers& x, const Evaluate& u) {
    const Numbers moved = t == 1 ? Numbers(12, 0) : x + -1.0 * before;
    before = x;
    return x + rule.gamma() * u(x + rule.alpha() * moved) + rule.mu() * moved;
  });
}

TEST_CASE("Robust (2): satisfies αγ = μ/L; defaults equal published values") {
  for (std::uint64_t i = 0; i < 100; ++i) {
    const auto between = [&](double low, double high, std::uint64_t stream) {
      return low + (high - low) * uniform<double>(Seed{stream}, 0, i);
    };
    const update::Robust rule{.p = between(0.01, 0.95, 1), .k = between(1.01, 10, 2), .l = between(0.1, 5, 3)};
    CHECK(rule.alpha() * rule.gamma() == doctest::Approx(rule.mu() / rule.l).epsilon(1e-13));
  }
  const update::Robust published{.p = 0.2, .k = 1.25, .l = 1.0};
  CHECK(published.gamma() == doctest::Approx(0.96).epsilon(1e-14));
  CHECK(published.mu() == doctest::Approx(0.04).epsilon(1e-14));
  CHECK(published.alpha() == doctest::Approx(0.0416666666666667).epsilon(1e-14));
  CHECK(update::Robust{}.gamma() == published.gamma());
  CHECK(update::Robust{}.mu() == published.mu());
}

TEST_CASE("Robust: options outside their range throw before any write") {
  Cpu::Context ctx(1);
  const auto says = [&](const update::Robust& rule) {
    auto p = pass<double>(ctx, Stack{Residual{rule, Swirl{}}, 4}, 3);
    const auto message = message_of([&] { p.forward(); });
    CHECK(p.untouched());
    return message;
  };
  CHECK(says({.k = 1}) == "Robust: k: expected more than 1, got 1");
  CHECK(says({.k = quiet_nan}) == "Robust: k: expected more than 1, got nan");
  CHECK(says({.p = 1}) == "Robust: p: expected 0 <= p < 1, got 1");
  CHECK(says({.p = -0.1}) == "Robust: p: expected 0 <= p < 1, got -0.1");
  CHECK(says({.l = 0}) == "Robust: l: expected more than 0, got 0");
  auto p = pass<double>(ctx, Stack{Residual{update::Robust{}, Swirl{}}, 4}, 3);
  p.carry = {};
  CHECK(message_of([&] { p.forward(); }) == "Robust: carry.p: expected [3, 4], got [0, 0]");
}

TEST_CASE("Robust: gradients and conformance through four layers") {
  keeps_its_promises(update::Robust{.p = 0.5, .k = 2});
}

TEST_CASE("Robust: NaN or infinite coefficients throw") {
  CHECK(refusal(update::Robust{.k = infinity}) == "Robust: k: expected a finite number, got inf");
  CHECK(refusal(update::Robust{.l = infinity}) == "Robust: l: expected a finite number, got inf");
}

namespace {

const update::Robust robust{.p = 0.5, .k = 3, .l = 0.8};

}  // namespace

TEST_CASE("PlainAhead (1): reads the look-ahead of robust momentum") {
  Cpu::Context ctx(1);
  const double ahead = robust.alpha() * robust.gamma();
  const Residual moving{robust, Swirl{}};
  const Residual dense{update::PlainAhead{robust}, Swirl{}};
  auto p = pass<double>(ctx, Chain{dense, moving, dense, moving}, 3);
  p.forward();
  const auto& layers = p.params.layers;
  const Numbers w[] = {values(std::get<0>(layers).branch), values(std::get<1>(layers).branch),
                       values(std::get<2>(layers).branch), values(std::get<3>(layers).branch)};
  Numbers x = values(p.x), q(x.size(), 0);
  for (int l = 0; l < 4; ++l) {
    const Numbers u = swirl(w[l], x + ahead * q);
    if (l % 2) q = robust.mu() * q + u;
    x = l % 2 ? x + robust.gamma() * q : x + u;
  }
  CHECK(difference(values(p.y), x) <= 1e-14);
  CHECK(difference(values(p.carry), q) <= 1e-14);
}

TEST_CASE("PlainAhead: equals Plain before any momentum") {
  Cpu::Context ctx(1);
  auto ahead = pass<double>(ctx, Stack{Residual{update::PlainAhead{robust}, Swirl{}}, 2}, 3);
  auto plain = pass<double>(ctx, Stack{Residual{update::Plain{}, Swirl{}}, 2}, 3);
  ahead.forward();
  plain.forward();
  CHECK(same_bits(values(ahead.y), values(plain.y)));
}

TEST_CASE("PlainAhead: gradients and conformance, also between robust layers") {
  keeps_its_promises(update::PlainAhead{robust});
  const auto report = check::conformance<Cpu, double>(
      Chain{Residual{robust, Swirl{}}, Residual{update::PlainAhead{robust}, Swirl{}}, Residual{robust, Swirl{}}},
      {.gradients = {.items = 3}, .items_are_independent = true});
  CHECK_MESSAGE(report, report.str());
}

TEST_CASE("PlainAhead: options outside their range throw before any write") {
  CHECK(refusal(update::PlainAhead{.robust = {.k = 1}}) == "Robust: k: expected more than 1, got 1");
}
