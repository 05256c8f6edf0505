#include "gatefold/gate/auxiliary/cv_squared.hpp"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"

using namespace gatefold;

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

TEST_CASE("CvSquared (1): both forms equal loops, slopes equal finite differences") {
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

TEST_CASE("CvSquared: known values for equal loads and one loaded expert") {
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
