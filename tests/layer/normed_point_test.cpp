#include "gatefold/layer/normed_point.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "gatefold/check/conformance.hpp"
#include "gatefold/expert/layer_norm.hpp"
#include "gatefold/expert/linear.hpp"
#include "gatefold/layer/no_residual.hpp"
#include "gatefold/layer/pre_norm.hpp"
#include "gatefold/layer/residual.hpp"
#include "gatefold/layer/stack.hpp"
#include "gatefold/update/momentum.hpp"
#include "gatefold/update/robust.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

constexpr Index dim = 4;
const OneExpert linear{Linear{.model_dim = dim}};

}  // namespace

TEST_CASE("NormedPoint (1): momentum looks ahead after the norm") {
  Cpu::Context ctx(1);
  const update::Robust rule{.p = 0.5, .k = 2};
  auto p = pass<double>(ctx, Stack{NormedPoint{LayerNorm{}, Residual{rule, linear}}, 3}, 5);
  p.forward();
  for (Index n = 0; n < 5; ++n) {
    std::vector<double> x(dim), q(dim, 0), point(dim);
    for (Index d = 0; d < dim; ++d) x[std::size_t(d)] = p.x(n, d);
    for (const auto& layer : p.params.layers) {
      double mean = 0, variance = 0;
      for (const double v : x) mean += v / double(dim);
      for (const double v : x) variance += (v - mean) * (v - mean) / double(dim);
      for (Index d = 0; d < dim; ++d)
        point[std::size_t(d)] =
            (x[std::size_t(d)] - mean) / std::sqrt(variance + 1e-5) + rule.alpha() * rule.gamma() * q[std::size_t(d)];
      for (Index d = 0; d < dim; ++d) {
        const auto& expert = layer.layer.branch.expert;
        double u = expert.bias(0, d);
        for (Index k = 0; k < dim; ++k) u += point[std::size_t(k)] * expert.weight(0, k, d);
        q[std::size_t(d)] = rule.mu() * q[std::size_t(d)] + u;
        x[std::size_t(d)] += rule.gamma() * q[std::size_t(d)];
      }
    }
    for (Index d = 0; d < dim; ++d) CHECK(p.y(n, d) == doctest::Approx(x[std::size_t(d)]).epsilon(1e-12));
  }
}

TEST_CASE("NormedPoint: without look-ahead it equals PreNorm up to rounding") {
  Cpu::Context ctx(1);
  auto point = pass<double>(ctx, Stack{NormedPoint{LayerNorm{}, Residual{update::HeavyBall{}, linear}}, 2}, 6);
  auto norm = pass<double>(ctx, Stack{Residual{update::HeavyBall{}, PreNorm{LayerNorm{}, linear}}, 2}, 6);
  for (std::size_t l = 0; l < 2; ++l)
    copy_pack(ctx, point.params.layers[l].layer.branch, norm.params.layers[l].branch.branch);
  copy(ctx, point.x, norm.x.view());
  copy(ctx, point.dy, norm.dy.view());
  point.forward();
  norm.forward();
  CHECK(difference(values(point.y, point.carry), values(norm.y, norm.carry)) <= 1e-13);
  point.backward();
  norm.backward();
  CHECK(difference(values(point.dx, point.dcarry), values(norm.dx, norm.dcarry)) <= 1e-12);
}

TEST_CASE("NormedPoint: a stack with look-ahead passes conformance") {
  const NormedPoint layer{LayerNorm{}, Residual{update::Robust{.p = 0.5, .k = 2}, linear}};
  const auto report = check::conformance<Cpu, double>(Stack{layer, 3}, {.items_are_independent = true});
  CHECK_MESSAGE(report, report.str());
}

TEST_CASE("NormedPoint: wrong widths or shapes throw before any write") {
  Cpu::Context ctx(1);
  auto p = pass<float>(ctx, NormedPoint{LayerNorm{}, OneExpert{Linear{.model_dim = 4, .output_dim = 3}}}, 5);
  CHECK(message_of([&] { p.forward(); }) == "NormedPoint: layer.out_dim: expected 4 (its in_dim), got 3");
  CHECK(p.untouched());
  auto q = pass<float>(ctx, NormedPoint{LayerNorm{}, linear}, 5);
  q.x.resize(5, 3);
  CHECK(message_of([&] { q.forward(); }) == "NormedPoint.forward: x: expected [?, 4], got [5, 3]");
}
