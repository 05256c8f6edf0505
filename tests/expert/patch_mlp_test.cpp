#include "gatefold/expert/patch_mlp.hpp"

#include <doctest/doctest.h>

#include <cmath>

#include "gatefold/check/conformance.hpp"
#include "support/experts.hpp"
#include "support/part_of_slots.hpp"
#include "support/pass.hpp"
#include "support/patches.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

double cube(double v) { return v * v * v; }

/// Returns an expert whose weights differ from patch to patch, drawn from U(±1/√3).
PatchMlp<> wide(Index outputs, bool bias) {
  return {.model_dim = 3,
          .patches = 4,
          .filters = 6,
          .outputs = outputs,
          .bias = bias,
          .equal_patches = false,
          .initial = {.scale = 1}};
}

}  // namespace

TEST_CASE("PatchMlp (1): equals loops for empty, full, many experts") {
  Cpu::Context ctx(2);
  for (const bool bias : {true, false})
    for (const Index outputs : {1, 3})
      for (const auto& counts : uneven_counts()) {
        Bank<double, PatchMlp<>> b(ctx, wide(outputs, bias), counts, 6);
        b.forward();
        CHECK(difference(b.of_slots(b.z), b.expected([&](Index e, const std::vector<double>& x) {
                return naive::patches(
                    x, 4, 3, 6, outputs, [&](Index p, Index d, Index j) { return b.params.weight(e, p, d, j); },
                    [&](Index p, Index j) { return bias ? b.params.bias(e, p, j) : 0; }, cube);
              }),
                         1) <= 1e-14);  // sums of cubes, which cancel
      }
}

TEST_CASE("PatchMlp (1): the gradient of w_{j,p} equals its formula") {
  Cpu::Context ctx(1);
  Bank<double, PatchMlp<>> b(ctx, wide(1, false), {2, 0, 3}, 6);
  b.forward();
  b.backward();
  std::vector<double> expected;
  for (Index e = 0; e < 3; ++e)
    for (Index p = 0; p < 4; ++p)
      for (Index d = 0; d < 3; ++d)
        for (Index j = 0; j < 6; ++j) {
          double sum = 0;
          for (Index s = b.offsets[std::size_t(e)]; s < b.offsets[std::size_t(e) + 1]; ++s) {
            const Index n = b.rows[std::size_t(s)];
            double v = 0;
            for (Index c = 0; c < 3; ++c) v += b.params.weight(e, p, c, j) * b.x(n, p * 3 + c);
            sum += b.dz(s, 0) * 3 * v * v * b.x(n, p * 3 + d);
          }
          expected.push_back(sum);
        }
  CHECK(difference(values(b.grads.weight), expected) <= 1e-14);
}

TEST_CASE("PatchMlp: filters start at σ₀ of Theorem 1, paper 003") {
  const Initial initial = PatchMlp<>{}.initial;
  CHECK(initial.law == Initial::Law::normal);
  CHECK(initial.scale >= std::pow(50, -1. / 3));
  CHECK(initial.scale <= std::pow(50, -0.01));
}

TEST_CASE("PatchMlp (2): filters of the patches start equal or independent") {
  Cpu::Context ctx(1);
  PatchMlp<> expert{.model_dim = 50, .patches = 4, .filters = 8, .bias = true, .initial = Initial::normal(0.1)};
  const auto difference_of_patches = [&] {
    const auto p = expert.init<double, Cpu>(ctx, 5, Seed{1});
    Index different = 0;
    double square = 0;
    for (Index e = 0; e < 5; ++e)
      for (Index j = 0; j < 8; ++j)
        for (Index d = 0; d < 50; ++d) {
          square += p.weight(e, 0, d, j) * p.weight(e, 0, d, j) / 2000;
          for (Index q = 1; q < 4; ++q) different += p.weight(e, q, d, j) != p.weight(e, 0, d, j);
        }
    CHECK(square == doctest::Approx(0.01).epsilon(5 * std::sqrt(2 / 2000.0)).scale(0));  // five standard deviations
    CHECK(p.weight(0, 0, 0, 0) != p.weight(1, 0, 0, 0));
    CHECK(p.weight(0, 0, 0, 0) != p.weight(0, 0, 0, 1));
    for (const double v : values(p.bias)) CHECK(v == 0);
    return different;
  };
  CHECK(difference_of_patches() == 0);
  expert.equal_patches = false;
  CHECK(difference_of_patches() == 5 * 8 * 50 * 3);
  expert.initial = {};
  expert.equal_patches = true;
  const auto p = expert.init<double, Cpu>(ctx, 2, Seed{1});
  for (Index q = 1; q < 4; ++q) CHECK(p.bias(1, q, 3) == p.bias(1, 0, 3));
}

TEST_CASE("PatchMlp: unused slots stay untouched; gradients are added") {
  for (const bool bias : {true, false}) {
    const auto broken = broken_promises<double>(wide(2, bias), [](auto& bank) {
      for (Index i = bank.used() * 4 * 6; i < bank.saved.pre.size(); ++i) bank.saved.pre.data()[i] = quiet_nan;
    });
    CHECK_MESSAGE(broken.empty(), (broken.empty() ? "" : broken[0]));
  }
}

TEST_CASE("PatchMlp: slots may start anywhere") {
  const auto broken = broken_for_later_slots<double>(wide(2, true));
  CHECK_MESSAGE(broken.empty(), (broken.empty() ? "" : broken[0]));
}

TEST_CASE("PatchMlp: gradients and conformance of a layer") {
  auto expert = wide(2, true);
  const auto report = check::conformance<Cpu, double>(expert, {.items_are_independent = true});
  CHECK_MESSAGE(report, report.str());
  Cpu::Context ctx(1);
  const auto without = check::gradients(ctx, wide(1, false));
  CHECK_MESSAGE(without, without.str());
}

TEST_CASE("PatchMlp: wrong options and shapes throw") {
  Cpu::Context ctx(1);
  using M = PatchMlp<>;
  const auto message = [&](const M& m) { return message_of([&] { (void)m.init<double, Cpu>(ctx, 1, {}); }); };
  CHECK(message({.filters = 2}) == "PatchMlp.init: model_dim: expected at least 1, got 0");
  CHECK(message({.model_dim = 2, .patches = 0, .filters = 2}) == "PatchMlp.init: patches: expected at least 1, got 0");
  CHECK(message({.model_dim = 2}) == "PatchMlp.init: filters: expected at least 1, got 0");
  CHECK(message({.model_dim = 2, .filters = 8, .outputs = 3}) ==
        "PatchMlp.init: outputs: expected a divisor of filters = 8, got 3");
  const M m{.model_dim = 2, .patches = 3, .filters = 4};
  auto p = m.init<double, Cpu>(ctx, 5, {});
  CHECK(message_of([&] { m.validate(p, 5); }) == "no ArgumentError");
  CHECK(message_of([&] { m.validate(p, 6); }) == "PatchMlp: params.weight: expected [6, 3, 2, 4], got [5, 3, 2, 4]");
  p.bias.resize(5, 3, 4);
  CHECK(message_of([&] { m.validate(p, 5); }) == "PatchMlp: params.bias: expected [5, 3, 0], got [5, 3, 4]");
}
