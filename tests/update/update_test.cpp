#include "gatefold/update/update.hpp"

#include <doctest/doctest.h>

#include <type_traits>

#include "gatefold/check/conformance.hpp"
#include "gatefold/expert/mlp.hpp"
#include "gatefold/gate/composed_gate.hpp"
#include "gatefold/layer/mixture.hpp"
#include "gatefold/layer/residual.hpp"
#include "gatefold/layer/stack.hpp"
#include "gatefold/optim/adamw.hpp"
#include "gatefold/update/adam.hpp"
#include "gatefold/update/complex_momentum.hpp"
#include "gatefold/update/first.hpp"
#include "gatefold/update/learned_heavy_ball.hpp"
#include "gatefold/update/momentum.hpp"
#include "gatefold/update/plain.hpp"
#include "gatefold/update/rms_prop.hpp"
#include "gatefold/update/robust.hpp"
#include "gatefold/update/scheduled_momentum.hpp"
#include "gatefold/update/sharpness_aware.hpp"
#include "gatefold/update/zero_order_hold.hpp"
#include "support/rules.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

/// A rule of a user with a learned step size: y = x + α u(x).
struct LearnedStep {
  template <class T, class B>
  struct Params {
    Tensor<T, 1, B> alpha;  // [1]
    GATEFOLD_PACK(alpha)
  };
  template <class T, class B>
  struct Saved {
    Tensor<T, 2, B> u;  // [N, D]
  };
  template <class T, class B>
  Params<T, B> init(typename B::Context& ctx, Seed) const {
    return {constant_tensor<T>(ctx, 0.5, 1)};
  }
  template <class T, class B, class F>
  void forward(typename B::Context& ctx, const Params<T, B>& p, In<T, 2, B> x, Nothing<T, B>&, F&& f, Out<T, 2, B> y,
               Saved<T, B>& saved) const {
    saved.u.resize(x.extent(0), x.extent(1));
    f(x, saved.u, 0);
    copy(ctx, x, y);
    add_scaled(ctx, p.alpha(0), saved.u, y);
  }
  template <class T, class B, class F>
  void backward(typename B::Context& ctx, const Params<T, B>& p, In<T, 2, B> x, const Saved<T, B>& saved, F&& df,
                In<T, 2, B> dy, Nothing<T, B>&, Out<T, 2, B> dx, Params<T, B>& grads) const {
    auto mark = ctx.mark();
    auto du = ctx.template scratch<T>(x.extent(0), x.extent(1));
    fill(ctx, du, 0);
    add_scaled(ctx, p.alpha(0), dy, du);
    for (Index i = 0; i < dy.size(); ++i) grads.alpha(0) += dy.data()[i] * saved.u.data()[i];
    add(ctx, dy, dx);
    df(x, du, dx, 0);
  }
};
/// A rule whose carry has no begin.
struct NoBegin : update::Plain {
  template <class T, class B>
  struct Carry {
    Tensor<T, 2, B> p;
  };
};

/// Returns whether infer gives the y and carry of forward through three layers.
template <class T, class RuleT>
bool infers_the_same(Cpu::Context& ctx, const RuleT& rule) {
  const Stack stack{Residual{rule, Swirl{.model_dim = 21}}, 3};
  auto kept = pass<T>(ctx, stack, 801), not_kept = pass<T>(ctx, stack, 801);
  kept.forward();
  not_kept.infer();
  return same_bits(values(kept.y, kept.carry), values(not_kept.y, not_kept.carry));
}

auto mixture() {
  return Mixture{SoftmaxTopK{.scores = {.experts = 3}, .selection = {.k = 2}},
                 Mlp<Gelu>{.model_dim = 4, .hidden_dim = 5}};
}

}  // namespace

TEST_CASE("UpdateRule: the concept accepts only update rules") {
  CHECK(detail_::policy::UpdateRule<update::Plain, float, Cpu>);
  CHECK(detail_::policy::UpdateRule<update::HeavyBall, double, Cpu>);
  CHECK(detail_::policy::UpdateRule<LearnedStep, double, Cpu>);
  CHECK(detail_::policy::check_rule<LearnedStep, double, Cpu>());
  CHECK_FALSE(detail_::policy::RuleBegin<NoBegin>);
  CHECK_FALSE(detail_::policy::UpdateRule<optim::AdamW, float, Cpu>);
  CHECK_FALSE(detail_::policy::UpdateRule<SoftmaxTopK, float, Cpu>);
  CHECK(requires { typename optim::AdamW::IsOptimizer; });
}

TEST_CASE("UpdateRule: a user-defined rule with parameters works in stacks") {
  Cpu::Context ctx(1);
  auto own = pass<double>(ctx, Residual{LearnedStep{}, mixture()}, 5);
  auto plain = pass<double>(ctx, Residual{update::Plain{}, mixture()}, 5);
  own.forward();
  plain.forward();
  for (Index i = 0; i < own.y.size(); ++i)
    CHECK(own.y.data()[i] - own.x.data()[i] ==
          doctest::Approx(0.5 * (plain.y.data()[i] - plain.x.data()[i])).epsilon(1e-12));
  const auto layer =
      check::conformance<Cpu, double>(Residual{LearnedStep{}, mixture()}, {.items_are_independent = true});
  CHECK_MESSAGE(layer, layer.str());
  const auto stack = check::gradients(ctx, Stack{Residual{LearnedStep{}, mixture()}, 2});
  CHECK_MESSAGE(stack, stack.str());
}

TEST_CASE_TEMPLATE("every rule: infer returns y and carry of forward", T, float, double) {
  Cpu::Context ctx(2);
  CHECK(infers_the_same<T>(ctx, update::Plain{}));
  CHECK(infers_the_same<T>(ctx, update::HeavyBall{}));
  CHECK(infers_the_same<T>(ctx, update::Adam{.kappa = 0.1, .epsilon = 1e-2, .bias_correction = true}));
  CHECK(infers_the_same<T>(ctx, update::RmsProp{.epsilon = 1e-2}));
  CHECK(infers_the_same<T>(ctx, update::Nesterov::classical()));
  CHECK(infers_the_same<T>(ctx, update::Robust{}));
  CHECK(infers_the_same<T>(ctx, update::TimeVarying{}));
  CHECK(infers_the_same<T>(ctx, update::ScheduledRestart{}));
  CHECK(infers_the_same<T>(ctx, update::ComplexMomentum{}));
  CHECK(infers_the_same<T>(ctx, update::SharpnessAware{}));
  CHECK(infers_the_same<T>(ctx, update::SharpnessAware{.norm = update::Norm::batch}));
  CHECK(infers_the_same<T>(ctx, update::LearnedHeavyBall{}));
  CHECK(infers_the_same<T>(ctx, update::LearnedHeavyBall{.learn_mu = false, .step = update::StepSize::per_item}));
  CHECK(infers_the_same<T>(ctx, update::ZeroOrderHold{}));
  CHECK(infers_the_same<T>(ctx, update::First{update::Adam{.epsilon = 1e-2}, update::HeavyBall{}}));
  CHECK(infers_the_same<T>(ctx, update::First{update::RmsProp{}, update::Robust{}, false}));
  CHECK(infers_the_same<T>(ctx, LearnedStep{}));
}

TEST_CASE("Evaluation: computes u, then runs the step") {
  Cpu::Context ctx(1);
  const auto x = uniform_tensor<double>(ctx, Seed{1}, 1, 3, 4);
  auto u = constant_tensor<double>(ctx, 0, 3, 4);
  const functor::AddScaled<double> add_x{1, x.data(), u.data()};
  int steps = 0;
  const auto f = make_evaluation<double, Cpu>([&](auto point, auto to, int call, const auto& step) {
    CHECK(point.data() == x.data());
    CHECK(call == 5);
    fill(ctx, to, 8);
    steps += !std::is_same_v<std::decay_t<decltype(step)>, functor::NoStep<double>>;
    run_step(ctx, to, step);
  });
  f(x, u, 5, add_x);
  for (Index i = 0; i < 12; ++i) CHECK(u.data()[i] == 8 + x.data()[i]);
  CHECK(steps == 1);
  f(x, u, 5);
  CHECK(steps == 1);
  CHECK(u(2, 3) == 8);
}
