#include "bitwise/bitwise.hpp"

using namespace gatefold;
using namespace gatefold::bitwise;

namespace {

template <class F>
void each_rule(F&& f) {
  f("First", update::First{update::Adam{.epsilon = 0.3}, update::HeavyBall{}});
  f("TimeVarying", update::TimeVarying{});
  f("ScheduledRestart", update::ScheduledRestart{});
  f("SharpnessAware", update::SharpnessAware{.rho = 0.2});
  f("ComplexMomentum", update::ComplexMomentum{});
  f("ZeroOrderHold", update::ZeroOrderHold{});
  f("LearnedHeavyBall", update::LearnedHeavyBall{});
  f("LearnedHeavyBall, per item", update::LearnedHeavyBall{.learn_mu = false, .step = update::StepSize::per_item});
}
template <class R>
auto stack_of(const R& rule) {
  return Stack{Residual{rule, Mixture{top_2, Linear{.model_dim = dim}}}, 3};
}

}  // namespace

TEST_CASE_TEMPLATE("more update rules: any threads", T, float, double) {
  each_rule([](const std::string& name, const auto& rule) {
    CAPTURE(name);
    on_any_threads<T>(stack_of(rule), few, true);
    on_any_threads<T>(stack_of(rule), 500, false);
  });
}

TEST_CASE_TEMPLATE("more update rules: alone and in any batch", T, float, double) {
  each_rule([](const std::string& name, const auto& rule) {
    CAPTURE(name);
    in_any_batch<T>(stack_of(rule));
  });
}

TEST_CASE_TEMPLATE("SharpnessAware with the norm of the batch: any threads", T, float, double) {
  const update::SharpnessAware rule{.rho = 0.2, .norm = update::Norm::batch};
  on_any_threads<T>(stack_of(rule), few, true);
  on_any_threads<T>(stack_of(rule), 500, false);
}
