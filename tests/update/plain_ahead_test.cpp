#include "gatefold/update/plain_ahead.hpp"

#include <doctest/doctest.h>

#include "gatefold/update/plain.hpp"
#include "support/rules.hpp"

using namespace gatefold;
using namespace gatefold::support;

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

TEST_CASE("PlainAhead: before any momentum it equals Plain") {
  Cpu::Context ctx(1);
  auto ahead = pass<double>(ctx, Stack{Residual{update::PlainAhead{robust}, Swirl{}}, 2}, 3);
  auto plain = pass<double>(ctx, Stack{Residual{update::Plain{}, Swirl{}}, 2}, 3);
  ahead.forward();
  plain.forward();
  CHECK(same_bits(values(ahead.y), values(plain.y)));
}

TEST_CASE("PlainAhead: gradients and conformance, also between robust layers") {
  keeps_its_promises(update::PlainAhead{robust});
  const auto report = check::conformance<Cpu>(
      Chain{Residual{robust, Swirl{}}, Residual{update::PlainAhead{robust}, Swirl{}}, Residual{robust, Swirl{}}},
      {.gradients = {.items = 3}, .items_are_independent = true});
  CHECK_MESSAGE(report, report.str());
}

TEST_CASE("PlainAhead: options outside their range throw before any write") {
  CHECK(refusal(update::PlainAhead{.robust = {.k = 1}}) == "Robust: k: expected more than 1, got 1");
}
