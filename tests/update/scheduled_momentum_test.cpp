#include "gatefold/update/scheduled_momentum.hpp"

#include <doctest/doctest.h>

#include "support/rules.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

/// A schedule of a user: momentum of either sign, different in each layer.
struct Alternating {
  double mu(Index t) const { return t % 2 ? 0.1 * static_cast<double>(t) : -0.3 / static_cast<double>(t); }
};
using Rule = update::ScheduledMomentum<Alternating>;

}  // namespace

TEST_CASE("ScheduledMomentum (1): equals loops over four layers") {
  Cpu::Context ctx(1);
  Numbers momentum(12, 0);
  auto p = follow(ctx, Rule{.schedule = {}, .gamma = 0.7}, [&](int t, const Numbers& x, const Evaluate& u) {
    momentum = (t == 1 ? 0.1 : t == 2 ? -0.15 : t == 3 ? 0.3 : -0.075) * momentum + u(x);
    return x + 0.7 * momentum;
  });
  CHECK(difference(values(p.carry), momentum) <= 1e-14);
  CHECK(p.carry.layer == 4);
}

TEST_CASE("ScheduledMomentum: begin resets the layer count") {
  Cpu::Context ctx(1);
  auto p = pass<double>(ctx, Stack{Residual{Rule{}, Swirl{}}, 3}, 3);
  p.forward();
  const auto once = values(p.y);
  CHECK(p.carry.layer == 3);
  p.layer.begin(ctx, p.params, 3, p.carry);
  CHECK(p.carry.layer == 0);
  p.forward();
  CHECK(same_bits(values(p.y), once));
}

TEST_CASE("ScheduledMomentum: gradients and conformance, also in a Chain") {
  keeps_its_promises(Rule{});
  survives_a_chain(Rule{});
}
