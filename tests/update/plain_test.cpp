#include "gatefold/update/plain.hpp"

#include <doctest/doctest.h>

#include "gatefold/check/conformance.hpp"
#include "gatefold/expert/layer_norm.hpp"
#include "gatefold/expert/mlp.hpp"
#include "gatefold/gate/composed_gate.hpp"
#include "gatefold/layer/mixture.hpp"
#include "gatefold/layer/no_residual.hpp"
#include "gatefold/layer/pre_norm.hpp"
#include "gatefold/layer/residual.hpp"
#include "support/pass.hpp"
#include "support/rules.hpp"

using namespace gatefold;
using namespace gatefold::support;

TEST_CASE("Plain (1): y = x + u(x), evaluated once") {
  Cpu::Context ctx(1);
  Nothing<double, Cpu> none;
  const auto x = uniform_tensor<double>(ctx, Seed{1}, 1, 4, 3), u = uniform_tensor<double>(ctx, Seed{2}, 1, 4, 3);
  auto y = constant_tensor<double>(ctx, quiet_nan, 4, 3);
  int calls = 0;
  update::Plain{}.forward(
      ctx, none, x, none,
      support::with_steps<double>(ctx,
                                  [&](View<const double, 2, Cpu> point, View<double, 2, Cpu> out, int call) {
                                    CHECK(call == calls++);
                                    CHECK(point.data() == x.data());
                                    copy(ctx, u, out);
                                  }),
      y, none);
  CHECK(calls == 1);
  for (Index i = 0; i < 12; ++i) CHECK(y.data()[i] == u.data()[i] + x.data()[i]);
}

TEST_CASE("Plain: backward adds dy and the branch's gradient to dx") {
  Cpu::Context ctx(1);
  Nothing<double, Cpu> none;
  const auto x = uniform_tensor<double>(ctx, Seed{1}, 1, 4, 3), dy = uniform_tensor<double>(ctx, Seed{2}, 1, 4, 3);
  auto dx = constant_tensor<double>(ctx, 10, 4, 3);
  update::Plain{}.backward(
      ctx, none, x, none,
      [&](View<const double, 2, Cpu>, View<const double, 2, Cpu> du, View<double, 2, Cpu> dpoint, int) {
        add_scaled(ctx, 3, du, dpoint);
      },
      dy, none, dx, none);
  for (Index i = 0; i < 12; ++i) CHECK(dx.data()[i] == doctest::Approx(10 + 4 * dy.data()[i]).epsilon(1e-15));
}

TEST_CASE("Plain: gradients and conformance around every kind of branch") {
  const auto around = [](auto branch) {
    const auto report =
        check::conformance<Cpu, double>(Residual{update::Plain{}, branch}, {.items_are_independent = true});
    CHECK_MESSAGE(report, report.str());
  };
  const Mlp<Gelu> mlp{.model_dim = 4, .hidden_dim = 5};
  const Mixture mixture{SoftmaxTopK{.scores = {.experts = 3}, .selection = {.k = 2}}, mlp};
  around(OneExpert{mlp});
  around(mixture);
  around(PreNorm{LayerNorm{}, mixture});
}
