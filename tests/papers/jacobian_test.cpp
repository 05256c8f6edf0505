#include "gatefold/papers/jacobian.hpp"

#include <doctest/doctest.h>

#include <vector>

#include "gatefold/expert/linear.hpp"
#include "gatefold/expert/mlp.hpp"
#include "gatefold/gate/auxiliary/balance_loss.hpp"
#include "gatefold/gate/composed_gate.hpp"
#include "gatefold/layer/mixture.hpp"
#include "gatefold/layer/one_expert.hpp"
#include "gatefold/layer/residual.hpp"
#include "gatefold/layer/stack.hpp"
#include "gatefold/update/heavy_ball.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

/// Returns ∂y/∂x at the only item of p by central differences.
template <class P>
std::vector<double> differences(P& p) {
  const Index out = p.y.extent(1), in = p.x.extent(1);
  std::vector<double> j(static_cast<std::size_t>(out * in));
  const double h = 1e-5;
  for (Index i = 0; i < in; ++i) {
    const double at = p.x(0, i);
    for (const double sign : {1.0, -1.0}) {
      p.x(0, i) = at + sign * h;
      p.layer.begin(p.ctx, p.params, 1, p.carry);
      p.forward();
      for (Index o = 0; o < out; ++o) j[static_cast<std::size_t>(o * in + i)] += sign * p.y(0, o) / (2 * h);
    }
    p.x(0, i) = at;
  }
  return j;
}

auto mixture(double balance) {
  return Mixture{WithAuxiliary<SoftmaxTopK, Balance>{
                     .scores = {.experts = 4}, .selection = {.k = 2}, .auxiliary = {Balance{.weight = balance}}},
                 Mlp<Gelu>{.model_dim = 3, .hidden_dim = 5}};
}

}  // namespace

TEST_CASE("jacobian (1): a linear branch gives its weight, transposed") {
  Cpu::Context ctx(1);
  const OneExpert linear{Linear{.model_dim = 3, .output_dim = 2}};
  const auto params = linear.init<float, Cpu>(ctx, Seed{1});
  const auto x = matrix<float>({{1, -2, 3}});
  const auto j = jacobian(ctx, linear, params, x.view());
  REQUIRE(j.extent(0) == 2);
  REQUIRE(j.extent(1) == 3);
  for (Index o = 0; o < 2; ++o)
    for (Index i = 0; i < 3; ++i) CHECK(j(o, i) == params.expert.weight(0, i, o));
}

TEST_CASE("jacobian (1): equals central differences, without auxiliary losses") {
  Cpu::Context ctx(1);
  const auto branch = mixture(100);
  auto alone = pass<double>(ctx, branch, 1);
  // The error of central differences: h² and 2^-53 / h.
  CHECK(difference(values(jacobian(ctx, branch, alone.params.branch, alone.x.view())), differences(alone)) < 1e-8);
  const Stack layers{Residual{update::HeavyBall{}, branch}, 3};  // the adjoint of the carry matters
  auto deep = pass<double>(ctx, layers, 1);
  CHECK(difference(values(jacobian(ctx, layers, deep.params, deep.x.view())), differences(deep)) < 1e-8);
}

TEST_CASE("jacobian: accepts exactly one item") {
  Cpu::Context ctx(1);
  const auto branch = mixture(0);
  const auto params = branch.init<double, Cpu>(ctx, Seed{1});
  const Tensor<double, 2, Cpu> two(2, 3);
  CHECK(message_of([&] { (void)jacobian(ctx, branch, params, two.view()); }) ==
        "jacobian: x: expected [1, 3], got [2, 3]");
}
