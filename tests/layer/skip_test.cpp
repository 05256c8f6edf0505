#include "gatefold/layer/skip.hpp"

#include <doctest/doctest.h>

#include "gatefold/check/conformance.hpp"
#include "gatefold/expert/layer_norm.hpp"
#include "gatefold/expert/linear.hpp"
#include "gatefold/layer/one_expert.hpp"
#include "gatefold/layer/residual.hpp"
#include "gatefold/layer/stack.hpp"
#include "gatefold/update/heavy_ball.hpp"
#include "gatefold/update/plain.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

const OneExpert linear{Linear{.model_dim = 4}};

}  // namespace

TEST_CASE("Skip (1): around a branch it equals the plain residual") {
  Cpu::Context ctx(1);
  auto skip = pass<double>(ctx, Skip{linear}, 6);
  auto plain = pass<double>(ctx, Residual{update::Plain{}, linear}, 6);
  copy_pack(ctx, skip.params.layer.branch, plain.params.branch);
  copy(ctx, skip.x, plain.x.view());
  copy(ctx, skip.dy, plain.dy.view());
  skip.forward();
  plain.forward();
  CHECK(difference(values(skip.y), values(plain.y)) <= 1e-15);
  skip.backward();
  plain.backward();
  CHECK(difference(values(skip.dx, skip.grads), values(plain.dx, plain.grads)) <= 1e-15);
}

TEST_CASE("Skip: gradients and conformance around a layer with carry") {
  const Skip layer{Residual{update::HeavyBall{}, linear}};
  const auto report = check::conformance<Cpu>(Stack{layer, 2}, {.items_are_independent = true});
  CHECK_MESSAGE(report, report.str());
}

TEST_CASE("Skip: wrong widths or shapes throw before any write") {
  Cpu::Context ctx(1);
  auto p = pass<float>(ctx, Skip{OneExpert{Linear{.model_dim = 4, .output_dim = 3}}}, 5);
  CHECK(message_of([&] { p.forward(); }) == "Skip: layer.out_dim: expected 4 (its in_dim), got 3");
  CHECK(p.untouched());
  auto q = pass<float>(ctx, Skip{linear}, 5);
  q.x.resize(5, 3);
  CHECK(message_of([&] { q.forward(); }) == "Skip.forward: x: expected [?, 4], got [5, 3]");
}
