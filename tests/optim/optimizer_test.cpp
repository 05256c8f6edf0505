#include "gatefold/optim/optimizer.hpp"

#include <doctest/doctest.h>

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/backend/initial_values.hpp"
#include "gatefold/optim/adamw.hpp"
#include "gatefold/optim/clip.hpp"
#include "gatefold/optim/normalized_gd.hpp"
#include "gatefold/optim/schedule.hpp"
#include "gatefold/optim/sgd.hpp"
#include "gatefold/update/momentum.hpp"
#include "gatefold/update/plain.hpp"
#include "support/optimized.hpp"

using namespace gatefold;

namespace {

using optimized::Pack;
using optimized::random_pack;

template <class P>
std::vector<double> flat(const P& pack) {
  std::vector<double> all;
  for_each_tensor([&](const Name&, const auto& t) { all.insert(all.end(), t.data(), t.data() + t.size()); }, pack);
  return all;
}

/// A schedule with a factor that the test chooses.
struct Constant {
  double of_all = 1;
  double factor(Index) const { return of_all; }
};

template <class F>
std::string message_of(const F& f) {
  try {
    f();
  } catch (const ArgumentError& error) {
    return error.what();
  }
  return "nothing thrown";
}

/// Checks that gradients of another model, missing gradients and the state of another model are refused before anything
/// is written.
template <class O>
void expect_shapes_checked(const O& optimizer, const std::string& message) {
  CAPTURE(message);
  Cpu::Context ctx(1);
  Pack<double> params = random_pack<double>(1), grads = random_pack<double>(2), smaller = random_pack<double>(2);
  smaller.bias = constant_tensor<double>(ctx, 1, 5);
  auto state = optimizer.begin(ctx, params);
  optimizer.step(ctx, params, grads, state);
  const auto p = flat(params), s = flat(state);
  const auto g = flat(smaller);
  CHECK(message_of([&] { optimizer.step(ctx, params, smaller, state); }) == message);
  CHECK(flat(smaller) == g);
  Pack<double> none;
  CHECK(message_of([&] { optimizer.step(ctx, params, none, state); }).find("grads") != std::string::npos);
  if (!s.empty()) {
    auto of_another = optimizer.begin(ctx, smaller);
    CHECK(message_of([&] { optimizer.step(ctx, params, grads, of_another); }).find("state.m") != std::string::npos);
    CHECK(of_another.step == 0);
  }
  CHECK(flat(params) == p);
  CHECK(flat(state) == s);
  CHECK(state.step == 1);
}

/// Checks that a wrong option is refused before a run begins and in a step, before anything is written.
template <class O>
void expect_refused(const O& good, const O& bad, const std::string& message) {
  CAPTURE(message);
  Cpu::Context ctx(1);
  Pack<double> params = random_pack<double>(1), grads = random_pack<double>(2);
  const auto p = flat(params), g = flat(grads);
  auto state = good.begin(ctx, params);
  CHECK(message_of([&] { bad.begin(ctx, params); }) == message);
  CHECK(message_of([&] { bad.step(ctx, params, grads, state); }) == message);
  CHECK(flat(params) == p);
  CHECK(flat(grads) == g);
  CHECK(state.step == 0);
}

struct WithoutTag {
  double lr = 1;
};
struct WithoutRate {
  using IsOptimizer = void;
};

}  // namespace

TEST_CASE("Optimizer: the concept needs a tag and a learning rate") {
  static_assert(optim::Optimizer<optim::Sgd> && optim::Optimizer<optim::AdamW> &&
                optim::Optimizer<optim::NormalizedGd>);
  static_assert(!optim::Optimizer<WithoutTag> && !optim::Optimizer<WithoutRate> && !optim::Optimizer<int>);
  CHECK(optim::Optimizer<optim::Sgd>);
}

TEST_CASE("Optimizer: update rules are no optimizers") {
  static_assert(!optim::Optimizer<update::Plain> && !optim::Optimizer<update::HeavyBall>);
  CHECK_FALSE(optim::Optimizer<update::Plain>);
}

TEST_CASE("Optimizer: wrappers are optimizers, in any order") {
  static_assert(optim::Optimizer<optim::Clipped<optim::AdamW>>);
  static_assert(optim::Optimizer<optim::Scheduled<optim::Clipped<optim::Sgd>, optim::Warmup>>);
  static_assert(optim::Optimizer<optim::Clipped<optim::Scheduled<optim::Sgd, optim::Warmup>>>);
  const optim::Clipped<optim::Scheduled<optim::Sgd, optim::Warmup>> wrapped{{{.lr = 0.5}, {}}};
  CHECK(optim::rate_of(wrapped) == 0.5);
  CHECK(optim::with_rate(wrapped, 2).optimizer.optimizer.lr == 2);
  CHECK(wrapped.optimizer.optimizer.lr == 0.5);
}

TEST_CASE("StepCount: contains no tensors") {
  const optim::StepCount<Nothing<float, Cpu>> count{3};
  CHECK(count.step == 3);
  CHECK(count_values(count) == 0);
}

TEST_CASE("Optimizer: gradients and moments have the shapes of parameters") {
  expect_shapes_checked(optim::AdamW{}, "AdamW.step: grads.bias: expected [7], got [5]");
  expect_shapes_checked(optim::Sgd{}, "Sgd.step: grads.bias: expected [7], got [5]");
  expect_shapes_checked(optim::NormalizedGd{.per_expert = false},
                        "NormalizedGd.step: grads.bias: expected [7], got [5]");
  expect_shapes_checked(optim::Clipped{optim::Sgd{}, 0.1}, "Clipped.step: grads.bias: expected [7], got [5]");
  expect_shapes_checked(optim::Scheduled{optim::AdamW{}, optim::Warmup{2}},
                        "AdamW.step: grads.bias: expected [7], got [5]");
}

TEST_CASE("Optimizer: options not finite or out of range throw") {
  using namespace optim;
  const double infinity = std::numeric_limits<double>::infinity();
  for (const auto& [bad, got] :
       {std::pair{std::nan(""), "nan"}, {infinity, "inf"}, {-infinity, "-inf"}, {-1e-3, "-0.001"}}) {
    const auto rate = [&, got = got](const std::string& what) {
      return what + ": expected a finite number, at least 0, got " + got;
    };
    expect_refused(AdamW{}, AdamW{.lr = bad}, rate("AdamW: lr"));
    expect_refused(AdamW{}, AdamW{.epsilon = bad}, rate("AdamW: epsilon"));
    expect_refused(AdamW{}, AdamW{.decay = bad}, rate("AdamW: decay"));
    expect_refused(AdamW{}, AdamW{.beta1 = bad}, std::string("AdamW: beta1: expected 0 <= beta1 < 1, got ") + got);
    expect_refused(AdamW{}, AdamW{.beta2 = bad}, std::string("AdamW: beta2: expected 0 <= beta2 < 1, got ") + got);
    expect_refused(Sgd{}, Sgd{.lr = bad}, rate("Sgd: lr"));
    expect_refused(Sgd{}, Sgd{.momentum = bad}, rate("Sgd: momentum"));
    expect_refused(Sgd{}, Sgd{.decay = bad}, rate("Sgd: decay"));
    expect_refused(NormalizedGd{.per_expert = false}, NormalizedGd{.lr = bad, .per_expert = false},
                   rate("NormalizedGd: lr"));
    expect_refused(Clipped{Sgd{}, 1.0}, Clipped{Sgd{.lr = bad}, 1.0}, rate("Sgd: lr"));
    expect_refused(
        Scheduled{AdamW{}, Constant{}}, Scheduled{AdamW{}, Constant{bad}},
        rate("AdamW: lr").substr(0, std::string("AdamW: lr: expected a finite number, at least 0, got ").size()) +
            (bad == -1e-3 ? "-1e-06" : got));
    expect_refused(Scheduled{Clipped{AdamW{}, 0.1}, WarmupCosine{1, 3}},
                   Scheduled{Clipped{AdamW{}, 0.1}, WarmupCosine{1, 3, bad}}, rate("WarmupCosine: floor"));
  }
  expect_refused(AdamW{}, AdamW{.beta1 = 1}, "AdamW: beta1: expected 0 <= beta1 < 1, got 1");
  expect_refused(AdamW{}, AdamW{.beta2 = 1}, "AdamW: beta2: expected 0 <= beta2 < 1, got 1");
  expect_refused(Scheduled{Sgd{}, Warmup{}}, Scheduled{Sgd{}, Warmup{-1}},
                 "Warmup: warmup: expected at least 0, got -1");
  expect_refused(Scheduled{Sgd{}, WarmupCosine{0, 1}}, Scheduled{Sgd{}, WarmupCosine{-1, 1}},
                 "WarmupCosine: warmup: expected at least 0, got -1");
}
