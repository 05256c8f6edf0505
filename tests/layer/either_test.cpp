#include "gatefold/layer/either.hpp"

#include <doctest/doctest.h>

#include <vector>

#include "gatefold/check/conformance.hpp"
#include "gatefold/expert/linear.hpp"
#include "gatefold/expert/mlp.hpp"
#include "gatefold/gate/gates.hpp"
#include "gatefold/layer/mixture.hpp"
#include "gatefold/layer/no_residual.hpp"
#include "gatefold/layer/residual.hpp"
#include "gatefold/layer/stack.hpp"
#include "gatefold/update/plain.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

const Mixture mixture{SoftmaxTopK{.scores = {.experts = 3}, .selection = {.k = 2}}, Linear{.model_dim = 4}};
const OneExpert dense{Mlp<Gelu>{.model_dim = 4, .hidden_dim = 5}};

}  // namespace

TEST_CASE("Either (1): returns the bits of the chosen branch") {
  Cpu::Context ctx(2);
  auto both = pass<float>(ctx, Either{mixture, dense}, 9), other = pass<float>(ctx, Either{mixture, dense, true}, 9);
  auto first = pass<float>(ctx, mixture, 9);
  auto second = pass<float>(ctx, dense, 9);
  for (auto* p : {&both, &other}) p->forward();
  first.forward();
  second.forward();
  CHECK(same_bits(values(both.y), values(first.y)));
  CHECK(same_bits(values(other.y), values(second.y)));
  Index mixtures = 0;
  for_each_mixture(both.saved, [&](const auto&) { ++mixtures; });
  for_each_mixture(other.saved, [&](const auto&) { ++mixtures; });
  CHECK(mixtures == 1);
  CHECK(values(both.params.branch.second).empty());
  CHECK(values(other.params.branch.first).empty());
  both.infer();
  CHECK(same_bits(values(both.y), values(first.y)));
}

TEST_CASE("Either: gradients of either choice equal finite differences") {
  Cpu::Context ctx(1);
  for (const bool use_second : {false, true}) {
    const auto report = check::gradients(ctx, Either{mixture, dense, use_second});
    CHECK_MESSAGE(report, report.str());
  }
}

TEST_CASE("Either: a stack has layers of both kinds") {
  Cpu::Context ctx(1);
  const auto layer = [](bool use_second) { return Residual{update::Plain{}, Either{mixture, dense, use_second}}; };
  const auto stack = stack_of(std::vector{layer(true), layer(false), layer(true)});
  CHECK(stack.depth == 3);
  auto p = pass<double>(ctx, stack, 6);
  p.forward();
  Index mixtures = 0;
  for_each_mixture(p.saved, [&](const auto&) { ++mixtures; });
  CHECK(mixtures == 1);
  const auto report = check::gradients(ctx, stack);
  CHECK_MESSAGE(report, report.str());
}

TEST_CASE("Either: branches of different widths are refused") {
  Cpu::Context ctx(1);
  const Either wrong{mixture, OneExpert{Linear{.model_dim = 4, .output_dim = 3}}};
  CHECK(message_of([&] { init_params<double, Cpu>(wrong, ctx, Seed{1}); }) ==
        "Either: second.out_dim: expected 4 (from first.out_dim), got 3");
}
