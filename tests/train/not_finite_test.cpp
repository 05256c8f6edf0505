#include "gatefold/train/not_finite.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/expert/linear.hpp"
#include "gatefold/gate/gates.hpp"
#include "gatefold/layer/mixture.hpp"
#include "gatefold/optim/adamw.hpp"
#include "gatefold/optim/clip.hpp"
#include "gatefold/optim/normalized_gd.hpp"
#include "gatefold/optim/schedule.hpp"
#include "gatefold/optim/sgd.hpp"
#include "gatefold/train/trainer.hpp"

using namespace gatefold;

namespace {

constexpr Index kItems = 3, kDim = 2;
constexpr double kInfinity = std::numeric_limits<double>::infinity(), kNan = std::numeric_limits<double>::quiet_NaN();

template <class T, class P>
std::vector<T> flat(const P& p) {
  std::vector<T> all;
  for_each_tensor([&](const Name&, const auto& t) { all.insert(all.end(), t.data(), t.data() + t.size()); }, p);
  return all;
}
template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

/// A loss with the value and slope that the test sets.
struct Said {
  double value = 1, slope = 1;

  template <class T, class B>
  using Target = View<const T, 2, B>;
  template <class T, class B>
  void validate(View<const T, 2, B>, Target<T, B>) const {}
  template <class T, class B>
  void forward(typename B::Context& ctx, View<const T, 2, B>, Target<T, B>, View<T, 1, B> out) const {
    fill(ctx, out, T(value));
  }
  template <class T, class B>
  void backward(typename B::Context& ctx, View<const T, 2, B>, Target<T, B>, View<T, 2, B> dy) const {
    fill(ctx, dy, T(slope));
  }
};

/// Runs a good step, a bad one that must change nothing, and a good one. The result must have the bits of two good
/// steps.
template <class T, class O>
void expect_left_out(const O& optimizer, const Said& bad, const std::string& message) {
  CAPTURE(message);
  for (const NotFinite what : {NotFinite::throws, NotFinite::skips}) {
    Cpu::Context ctx(2), other(1);
    const Linear model{.model_dim = kDim, .output_dim = 3};
    Trainer trainer{ctx, model, Said{}, optimizer, Seed{1}, Element<T>{}};
    Trainer undisturbed{other, model, Said{}, optimizer, Seed{1}, Element<T>{}};
    trainer.not_finite = what;
    const auto x = uniform_tensor<T>(ctx, Seed{2}, 1.0, kItems, kDim),
               target = uniform_tensor<T>(ctx, Seed{3}, 1.0, kItems, 3);
    trainer.step(x, target);
    const auto params = flat<T>(trainer.params), state = flat<T>(trainer.state);
    trainer.loss = bad;
    if (what == NotFinite::throws) {
      CHECK_THROWS_WITH_AS(trainer.step(x, target), message.c_str(), NotFiniteError);
    } else {
      const double loss = trainer.step(x, target);
      CHECK((loss == bad.value || (std::isnan(loss) && std::isnan(bad.value))));
    }
    CHECK(trainer.skipped == (what == NotFinite::skips ? 1 : 0));
    CHECK(same_bits(flat<T>(trainer.params), params));
    CHECK(same_bits(flat<T>(trainer.state), state));
    CHECK(trainer.state.step == 1);
    trainer.loss = Said{};
    for (auto* t : {&trainer, &undisturbed}) t->step(x, target);
    undisturbed.step(x, target);
    CHECK(same_bits(flat<T>(trainer.params), flat<T>(undisturbed.params)));
    CHECK(trainer.state.step == 2);
    CHECK_FALSE(same_bits(flat<T>(trainer.params), params));
  }
}

const char* const in_weight =
    "Trainer.step: grads.weight: expected finite numbers, got NaN or infinity; no parameter was changed";

template <class T>
void expect_left_out_by_every_optimizer(const Said& bad, const std::string& message) {
  expect_left_out<T>(optim::AdamW{.decay = 0.1}, bad, message);
  expect_left_out<T>(optim::Sgd{.momentum = 0.9}, bad, message);
  expect_left_out<T>(optim::NormalizedGd{}, bad, message);
  expect_left_out<T>(optim::Scheduled{optim::Clipped{optim::AdamW{}, 1.0}, optim::Warmup{3}}, bad, message);
}

}  // namespace

TEST_CASE("all_finite: finds NaN and infinity in every tensor") {
  Cpu::Context ctx(2);
  for (const Index size : {Index(1), Index(4095), Index(4096), Index(4097), Index(10000)}) {
    Tensor<float, 1, Cpu> t(size);
    fill(ctx, t.view(), std::numeric_limits<float>::max());  // their sum overflows
    CHECK(all_finite(ctx, t));
    for (const Index at : {Index(0), size / 2, size - 1})
      for (const double bad : {kNan, kInfinity, -kInfinity}) {
        CAPTURE(size);
        CAPTURE(at);
        t(at) = static_cast<float>(bad);
        CHECK_FALSE(all_finite(ctx, t));
        t(at) = std::numeric_limits<float>::denorm_min();
        CHECK(all_finite(ctx, t));
      }
  }
  CHECK(all_finite(ctx, Tensor<double, 2, Cpu>(0, 3)));
}

TEST_CASE("not finite: a NaN loss takes no step") {
  expect_left_out_by_every_optimizer<double>(
      {.value = kNan}, "Trainer.step: loss: expected a finite number, got nan; no parameter was changed");
  expect_left_out<float>(optim::AdamW{}, {.value = -kInfinity},
                         "Trainer.step: loss: expected a finite number, got -inf; no parameter was changed");
}

TEST_CASE("not finite: a NaN gradient changes no parameter") {
  for (const double bad : {kNan, kInfinity}) expect_left_out_by_every_optimizer<double>({.slope = bad}, in_weight);
  expect_left_out<float>(optim::AdamW{}, {.slope = kNan}, in_weight);
  // The gradient is finite in double, but not in float.
  expect_left_out<float>(optim::Sgd{}, {.slope = 1e39}, in_weight);
  expect_left_out<float>(optim::Clipped{optim::Sgd{}}, {.slope = 1e39}, in_weight);
}

TEST_CASE("not finite: gradients with overflowing squares are clipped or refused") {
  const Said huge{.slope = 1e160};
  expect_left_out<double>(
      optim::Clipped{optim::Sgd{}}, huge,
      "Trainer.step: grads: expected a finite sum of squares, got an overflow; no parameter was changed");
  Cpu::Context ctx(1);
  const auto x = uniform_tensor<float>(ctx, Seed{2}, 1.0, kItems, kDim);
  const Tensor<float, 2, Cpu> target(kItems, 3);
  Trainer trainer{ctx, Linear{.model_dim = kDim, .output_dim = 3}, Said{.slope = 1e30},
                  optim::Clipped{optim::Sgd{.lr = 1}, 1.0}, Seed{1}};
  const auto before = flat<float>(trainer.params);
  trainer.step(x, target);
  const auto after = flat<float>(trainer.params);
  double squares = 0;
  for (std::size_t i = 0; i < after.size(); ++i) squares += std::pow(double(after[i]) - double(before[i]), 2);
  CHECK(std::sqrt(squares) == doctest::Approx(1).epsilon(1e-6));  // a step of norm 1, in float
}

TEST_CASE("not finite: a skipped step keeps the adaptive gate bias") {
  Cpu::Context ctx(1);
  const Mixture model{SigmoidTopK{.scores = {.experts = 3}, .selection = {.k = 1}}, Linear{.model_dim = kDim}};
  Trainer trainer{ctx, model, Said{}, optim::Sgd{}, Seed{1}};
  trainer.not_finite = NotFinite::skips;
  const auto x = uniform_tensor<float>(ctx, Seed{2}, 1.0, kItems, kDim);
  const Tensor<float, 2, Cpu> target(kItems, kDim);
  trainer.step(x, target);
  const auto params = flat<float>(trainer.params);
  trainer.loss.slope = kNan;
  trainer.step(x, target);
  CHECK(same_bits(flat<float>(trainer.params), params));
  CHECK(trainer.skipped == 1);
}

TEST_CASE_TEMPLATE("NotFiniteError: names the row of the batch with NaN", T, float, double) {
  Cpu::Context ctx(1);
  Trainer trainer{ctx,         Linear{.model_dim = kDim, .output_dim = 3}, Said{.value = kNan}, optim::Sgd{}, Seed{1},
                  Element<T>{}};
  auto x = uniform_tensor<T>(ctx, Seed{2}, 1.0, 40, kDim), target = uniform_tensor<T>(ctx, Seed{3}, 1.0, 40, 3);
  x(17, 1) = T(kNan);
  CHECK_THROWS_WITH_AS(trainer.step(x, target),
                       "Trainer.step: loss: expected a finite number, got nan (x has NaN in row 17, column 1); no "
                       "parameter was changed",
                       NotFiniteError);
  x(17, 1) = 0;
  target(39, 2) = T(-kInfinity);
  CHECK_THROWS_WITH_AS(trainer.step(x, target),
                       "Trainer.step: loss: expected a finite number, got nan (target has infinity in row 39, column "
                       "2); no parameter was changed",
                       NotFiniteError);
}
