#include "bitwise/bitwise.hpp"

using namespace gatefold;
using namespace gatefold::bitwise;

namespace {

template <class F>
void each_rule(F&& f) {
  f("Plain", update::Plain{});
  f("HeavyBall", update::HeavyBall{});
  f("Adam", update::Adam{.kappa = 0.2, .epsilon = 0.3});
  f("RmsProp", update::RmsProp{.epsilon = 0.3});
  f("Robust", update::Robust{});
  f("Nesterov", update::Nesterov{});
}
template <class R>
auto stack_of(const R& rule) {
  return Stack{Residual{rule, Mixture{top_2, Linear{.model_dim = dim}}}, 3};
}

}  // namespace

TEST_CASE_TEMPLATE("update rules: any threads", T, float, double) {
  each_rule([](const std::string& name, const auto& rule) {
    CAPTURE(name);
    on_any_threads<T>(stack_of(rule), few, true);
    on_any_threads<T>(stack_of(rule), 500, false);
  });
}

TEST_CASE_TEMPLATE("update rules: alone and in any batch", T, float, double) {
  each_rule([](const std::string& name, const auto& rule) {
    CAPTURE(name);
    in_any_batch<T>(stack_of(rule));
  });
}
