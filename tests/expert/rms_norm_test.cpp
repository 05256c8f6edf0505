#include "gatefold/expert/rms_norm.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "gatefold/check/conformance.hpp"
#include "gatefold/expert/linear.hpp"
#include "gatefold/layer/pre_norm.hpp"
#include "support/experts.hpp"
#include "support/part_of_slots.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

/// Equation (1) of one item.
template <class P>
std::vector<double> normalised(const P& p, Index e, const std::vector<double>& x, double epsilon) {
  double mean = 0;
  for (const double v : x) mean += v * v / double(x.size());
  std::vector<double> z;
  for (std::size_t d = 0; d < x.size(); ++d) z.push_back(x[d] / std::sqrt(mean + epsilon) * p.gain(e, Index(d)));
  return z;
}

}  // namespace

TEST_CASE("RmsNorm (1): scales items to mean square 1, times gain") {
  Cpu::Context ctx(2);
  for (const auto& counts : uneven_counts())
    for (const Index dim : {1, 5, 33})
      for (const double epsilon : {1e-6, 0.5}) {
        Bank<double, RmsNorm> b(ctx, {.model_dim = dim, .epsilon = epsilon}, counts, 6);
        fill_uniform(ctx, Seed{5}, -2, 2, b.params.gain);
        b.forward();
        CHECK(difference(b.of_slots(b.z), b.expected([&](Index e, const std::vector<double>& x) {
                return normalised(b.params, e, x, epsilon);
              })) <= 1e-14);
      }
}

TEST_CASE("RmsNorm: starts as gain 1; zeros stay zeros") {
  Cpu::Context ctx(1);
  auto p = pass<float>(ctx, RmsNorm{.model_dim = 4, .epsilon = 1e-30}, 3);
  CHECK(values(p.params) == std::vector<double>(4, 1));
  for (Index d = 0; d < 4; ++d) {
    p.x(0, d) = 0;
    p.x(1, d) = d % 2 ? 3.f : -3.f;
    p.x(2, d) = 65536 * p.x(1, d);
  }
  p.forward();
  CHECK(values(p.y) == std::vector<double>{0, 0, 0, 0, -1, 1, -1, 1, -1, 1, -1, 1});
}

TEST_CASE("RmsNorm: gradients and conformance; the branch deduces its dimension") {
  for (const Index dim : {2, 5, 16}) {
    const auto report = check::conformance<Cpu, double>(RmsNorm{.model_dim = dim}, {.items_are_independent = true});
    CHECK_MESSAGE(report, report.str());
  }
  const auto before = check::conformance<Cpu, double>(
      PreNorm{RmsNorm{}, OneExpert{Linear{.model_dim = 4, .output_dim = 3}}}, {.items_are_independent = true});
  CHECK_MESSAGE(before, before.str());
}

TEST_CASE("RmsNorm: unused slots stay untouched; slots may start anywhere") {
  const auto broken = broken_promises<double>(RmsNorm{.model_dim = 5}, [](auto& bank) {
    for (Index i = bank.used(); i < bank.saved.inverse.size(); ++i) bank.saved.inverse.data()[i] = quiet_nan;
  });
  CHECK_MESSAGE(broken.empty(), (broken.empty() ? "" : broken[0]));
  const auto later = broken_for_later_slots<double>(RmsNorm{.model_dim = 5});
  CHECK_MESSAGE(later.empty(), (later.empty() ? "" : later[0]));
}

TEST_CASE("RmsNorm: wrong options and shapes throw") {
  Cpu::Context ctx(1);
  auto p = RmsNorm{.model_dim = 2}.init<double, Cpu>(ctx, 3, {});
  CHECK(message_of([&] { (void)RmsNorm{}.init<double, Cpu>(ctx, 1, {}); }) ==
        "RmsNorm.init: model_dim: expected at least 1, got 0");
  CHECK(message_of([&] { (void)RmsNorm{.model_dim = 2, .epsilon = 0}.init<double, Cpu>(ctx, 1, {}); }) ==
        "RmsNorm.init: epsilon: expected more than 0, got 0");
  CHECK(message_of([&] { RmsNorm{.model_dim = 2, .epsilon = quiet_nan}.validate(p, 3); }) ==
        "RmsNorm: epsilon: expected more than 0, got nan");
  CHECK(message_of([&] { RmsNorm{.model_dim = 2}.validate(p, 4); }) ==
        "RmsNorm: params.gain: expected [4, 2], got [3, 2]");
  CHECK(RmsNorm{.epsilon = 0.25}.with_model_dim(6).epsilon == 0.25);
  CHECK(message_of([] { (void)RmsNorm{.model_dim = 5}.with_model_dim(6); }) ==
        "RmsNorm: model_dim: expected 6 (the width of the branch), got 5");
}
