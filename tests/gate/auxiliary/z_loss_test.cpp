#include "gatefold/gate/auxiliary/z_loss.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <utility>
#include <vector>

#include "support/gate_outcome.hpp"
#include "support/pass.hpp"
#include "support/rounded.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

/// Equation (2) in loops.
double z_loss(const Outcome& o, double weight) {
  double sum = 0, real = 0;
  for (Index n = 0; n < o.logits.extent(0); ++n) {
    if (!o.is_valid(n)) continue;
    double total = 0;
    for (Index e = 0; e < o.logits.extent(1); ++e) total += std::exp(o.logits(n, e));
    sum += std::log(total) * std::log(total);
    real += 1;
  }
  return weight * sum / real;
}

}  // namespace

TEST_CASE("ZLoss (2): averages squared log-sum-exps, without padding") {
  for (const auto& mask : {std::vector<double>{}, std::vector<double>{1, 0, 1, 1, 0, 1}}) {
    auto o = random_outcome(mask);
    CHECK(o.value(ZLoss{.weight = 0.4}) == doctest::Approx(z_loss(o, 0.4)).epsilon(1e-14));
  }
}

TEST_CASE("ZLoss: large logits do not overflow") {
  auto o = random_outcome();
  for (Index i = 0; i < o.logits.size(); ++i) o.logits.data()[i] = i % 4 == 0 ? 3000 : -3000;
  CHECK(o.value(ZLoss{.weight = 1}) == rounded(9e6));
  const auto [dz, dq] = o.gradients(ZLoss{.weight = 1});
  CHECK(dz(0, 0) == rounded(1 + 2 * 3000.0 / 6));
  CHECK(dz(0, 1) == 1);
}

TEST_CASE("ZLoss: logits with a large common part keep their gradient") {
  auto o = random_outcome();
  for (Index i = 0; i < o.logits.size(); ++i) o.logits.data()[i] = 1e15;  // next to it, log 4 is rounded to 1/8 steps
  const auto [dz, dq] = o.gradients(ZLoss{.weight = 1});
  for (Index i = 0; i < dz.size(); ++i) CHECK(dz.data()[i] == doctest::Approx(2e15 / 6 / 4).epsilon(1e-12));
}
