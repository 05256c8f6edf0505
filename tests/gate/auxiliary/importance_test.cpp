#include "gatefold/gate/auxiliary/importance.hpp"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "support/rounded.hpp"
#include "support/selections.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

using Gate = WithAuxiliary<SoftmaxTopK, Importance>;
const std::vector<double> mask{1, 0, 1, 1, 0, 1, 1};

GateAlone<Gate> alone(const Importance& loss, Index items = 7, View<const double, 1, Cpu> valid = {}) {
  return {{.scores = {.experts = 3}, .auxiliary = {loss}}, items, {.valid = valid}};
}
/// Equation (1) in loops.
double importance(const GateAlone<Gate>& a, const Importance& loss) {
  const auto& q = a.saved.probabilities;
  const double experts = double(q.extent(1));
  std::vector<double> v;
  double mean = 0, spread = 0;
  for (Index e = 0; e < q.extent(1); ++e) {
    v.push_back(0);
    for (Index n = 0; n < q.extent(0); ++n)
      if (!a.extra.valid.data() || a.extra.valid(n) != 0) v.back() += q(n, e);
    mean += v.back() / experts;
  }
  for (const double x : v) spread += (x - mean) * (x - mean) / (experts - double(loss.cv.ddof));
  return loss.weight * spread / (mean * mean + loss.cv.epsilon);
}

}  // namespace

TEST_CASE("Importance (1): is CV² of the experts' probability sums") {
  CHECK(Importance{}.weight == 0.005);
  for (const auto& loss : {Importance{.weight = 3}, Importance::shazeer({.weight = 3})})
    for (const auto& valid : {View<const double, 1, Cpu>{}, View<const double, 1, Cpu>(mask)}) {
      const auto a = alone(loss, 7, valid);
      CHECK(a.saved.auxiliary(0) > 1e-3);
      CHECK(a.saved.auxiliary(0) == doctest::Approx(importance(a, loss)).epsilon(1e-13));
    }
}

TEST_CASE("Importance: gradients through the gate equal finite differences") {
  for (const auto& loss : {Importance{.weight = 3}, Importance::shazeer({.weight = 3})})
    for (const auto& valid : {View<const double, 1, Cpu>{}, View<const double, 1, Cpu>(mask)}) {
      auto a = alone(loss, 7, valid);
      const auto report = a.gradients();
      CHECK_MESSAGE(report, report.str());
      CHECK(a.keeps_promises());
    }
}

TEST_CASE("Importance: is 0 at equal logits and without items") {
  auto equal = alone({}, 5);
  set_zero(equal.ctx, equal.params);
  equal.forward();
  CHECK(equal.saved.auxiliary(0) < 1e-30);
  CHECK(alone({}, 0).saved.auxiliary(0) == 0);
  const std::vector<double> padding(4, 0);
  auto a = alone({}, 4, padding);
  CHECK(a.saved.auxiliary(0) == 0);
  a.backward();
  for (const double g : values(a.grads)) CHECK(g == 0);
}

TEST_CASE("Importance: padding does not count") {
  auto a = alone({.weight = 3}, 7, mask);
  const double before = a.saved.auxiliary(0);
  for (const Index n : {1, 4})
    for (Index d = 0; d < 4; ++d) a.x(n, d) = quiet_nan;
  a.forward();
  CHECK(a.saved.auxiliary(0) == before);
}

TEST_CASE("Importance: sums v in double for a million items") {
  Cpu::Context ctx(1);
  const Index items = Index(1) << 20;
  auto q = constant_tensor<float>(ctx, 0.1, items, 2);
  for (Index n = 0; n < items; ++n) q(n, 1) = 0.9f;
  SparsePlan<float, Cpu> plan;
  Tensor<float, 1, Cpu> value(1);
  Importance{.weight = 1}.forward<float, Cpu>(ctx, GateOutcome<float, Cpu>{q, q, plan, {}}, value);
  CHECK(value(0) == rounded<float>(0.64));
}

TEST_CASE("Importance: wrong options throw") {
  CHECK(Importance::shazeer().cv.ddof == 0);
  CHECK(Importance::shazeer().cv.epsilon == 1e-10);
  CHECK(message_of([] { Importance{.cv = {.ddof = -1}}.validate(3); }) ==
        "Importance: cv.ddof: expected at least 0, got -1");
  CHECK(message_of([] { alone({.cv = {.ddof = -1}}); }) == "Importance: cv.ddof: expected at least 0, got -1");
}

namespace {

struct Outcome {
  double value;
  std::vector<double> slope;
};
Outcome run(const std::vector<double>& v, const CvSquared& cv, double weight = 1) {
  Outcome o{99, std::vector<double>(v.size())};
  functor::CvSquaredValue<double, Cpu>{v, cv, weight, {&o.value, 1}, o.slope}(0);
  return o;
}
/// Equation (1) with the variance as a mean of squared differences of pairs.
double naive(const std::vector<double>& v, const CvSquared& cv) {
  double pairs = 0, mean = 0;
  const double count = double(v.size());
  for (const double a : v) {
    mean += a / count;
    for (const double b : v) pairs += (a - b) * (a - b) / 2;
  }
  return pairs / count / (count - double(cv.ddof)) / (mean * mean + cv.epsilon);
}

}  // namespace

TEST_CASE("CvSquared (1): value equals loops, derivative equals finite difference") {
  const std::vector<double> v{0.3, 2, 1.1, 0.2, 0.7};
  for (const auto& cv :
       {CvSquared{}, CvSquared::shazeer(), CvSquared::fastmoe(), CvSquared{.ddof = 1, .epsilon = 0.5}}) {
    const auto o = run(v, cv, 0.7);
    CHECK(o.value == doctest::Approx(0.7 * naive(v, cv)).epsilon(1e-14));
    for (std::size_t e = 0; e < v.size(); ++e) {
      auto up = v, down = v;
      up[e] += 1e-5;
      down[e] -= 1e-5;
      // The error of central differences: h² = 1e-10, and 2^-53 / h for rounding.
      CHECK(o.slope[e] == doctest::Approx(0.7 * (naive(up, cv) - naive(down, cv)) / 2e-5).epsilon(1e-8));
    }
  }
}

TEST_CASE("CvSquared: equal loads and one loaded expert give known values") {
  CHECK(run({2, 2, 2, 2}, {}).value == 0);
  CHECK(run({0, 6, 0, 0}, {}).value == doctest::Approx(3).epsilon(1e-15));
  CHECK(run({0, 6, 0, 0}, CvSquared::shazeer()).value == doctest::Approx(3).epsilon(1e-10));
  CHECK(run({0, 6, 0, 0}, CvSquared::fastmoe()).value == doctest::Approx(4).epsilon(1e-10));
}

TEST_CASE("CvSquared: one expert or no items gives 0; NaN propagates") {
  for (const auto& cv : {CvSquared{}, CvSquared::shazeer(), CvSquared::fastmoe()}) {
    CHECK(run({3}, cv).value == 0);
    CHECK(run({3}, cv).slope[0] == 0);
    CHECK(run({0, 0, 0}, cv).value == 0);
    CHECK(run({0, 0, 0}, cv).slope == std::vector<double>{0, 0, 0});
    const double nan = run({1, std::numeric_limits<double>::quiet_NaN()}, cv).value;
    CHECK(nan != nan);
  }
}

TEST_CASE("CvSquared: wrong options throw") {
  const auto said = [](const CvSquared& cv) {
    try {
      cv.validate("Load");
    } catch (const ArgumentError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK(said({}) == "");
  CHECK(said({.ddof = -1}) == "Load: cv.ddof: expected at least 0, got -1");
  CHECK(said({.epsilon = -1}) == "Load: cv.epsilon: expected at least 0, got -1");
}
