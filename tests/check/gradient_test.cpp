#include "gatefold/check/gradient.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/backend/elementwise.hpp"
#include "gatefold/backend/initial_values.hpp"
#include "gatefold/check/conformance.hpp"
#include "gatefold/core/types.hpp"
#include "gatefold/expert/activation.hpp"
#include "gatefold/expert/linear.hpp"
#include "gatefold/expert/mlp.hpp"
#include "gatefold/gate/auxiliary/balance_loss.hpp"
#include "gatefold/gate/auxiliary/z_loss.hpp"
#include "gatefold/gate/composed_gate.hpp"
#include "gatefold/layer/chain.hpp"
#include "gatefold/layer/frozen.hpp"
#include "gatefold/layer/mixture.hpp"
#include "gatefold/layer/residual.hpp"
#include "gatefold/layer/stack.hpp"
#include "gatefold/loss/cross_entropy.hpp"
#include "gatefold/loss/logistic.hpp"
#include "gatefold/loss/mean_squared_error.hpp"
#include "gatefold/optim/sgd.hpp"
#include "gatefold/tensor/pack.hpp"
#include "gatefold/tensor/tensor.hpp"
#include "gatefold/train/trainer.hpp"
#include "gatefold/update/momentum.hpp"
#include "gatefold/update/plain.hpp"
#include "support/larger.hpp"
#include "support/pass.hpp"

using namespace gatefold;

namespace {

enum class Fault {
  none,
  sign_of_input,   // dx has the wrong sign
  missing_term,    // dx without the part that comes through the product of x and tanh x
  sign_of_weight,  // dweight has the wrong sign
  one_weight,      // one entry of dweight is too large by 10⁻⁵ of itself
  nan_weight,      // one entry of dweight is NaN
  no_bias,         // dbias is left out
  sign_of_carry,   // the adjoint of the carry has the wrong sign
  carry_left,      // the adjoint of the carry is not updated
  zero_of_weight,  // the weight has no effect on y, and no gradient
  forward_nan,     // y is NaN
};

/// y = x tanh(x) ⊙ weight + bias + s, s ← 2 s + x: a layer with every part that can be wrong.
struct Faulty {
  Index dim = 3;
  Fault fault = Fault::none;

  template <class T, class B>
  struct Params {
    Tensor<T, 1, B> weight, bias;
    GATEFOLD_PACK(weight, bias)
  };
  template <class T, class B>
  struct Carry {
    Tensor<T, 2, B> s;
    GATEFOLD_PACK(s)
  };

  Index in_dim() const { return dim; }
  Index out_dim() const { return dim; }
  template <class T, class B>
  Params<T, B> init(typename B::Context& ctx, Seed seed) const {
    return {uniform_tensor<T>(ctx, seed.fork(0), 1, dim), uniform_tensor<T>(ctx, seed.fork(1), 1, dim)};
  }
  template <class T, class B>
  void begin(typename B::Context& ctx, const Params<T, B>&, Index items, Carry<T, B>& carry) const {
    carry.s.resize(items, dim);
    fill(ctx, carry.s.view(), 0);
  }
  template <class T, class B>
  void forward(typename B::Context&, const Params<T, B>& p, In<T, 2, B> x, Carry<T, B>& carry, Out<T, 2, B> y,
               Nothing<T, B>&, const Nothing<T, B>& = {}) const {
    for (Index n = 0; n < x.extent(0); ++n)
      for (Index d = 0; d < dim; ++d) {
        const T w = fault == Fault::zero_of_weight ? T(1) : p.weight(d);
        y(n, d) = x(n, d) * std::tanh(x(n, d)) * w + p.bias(d) + carry.s(n, d);
        carry.s(n, d) = 2 * carry.s(n, d) + x(n, d);
        if (fault == Fault::forward_nan) y(n, d) = std::numeric_limits<T>::quiet_NaN();
      }
  }
  template <class T, class B>
  void backward(typename B::Context&, const Params<T, B>& p, In<T, 2, B> x, const Nothing<T, B>&, In<T, 2, B> dy,
                Carry<T, B>& dcarry, Out<T, 2, B> dx, Params<T, B>& grads, const Nothing<T, B>&, Nothing<T, B>&) const {
    for (Index n = 0; n < x.extent(0); ++n)
      for (Index d = 0; d < dim; ++d) {
        const T t = std::tanh(x(n, d)), w = fault == Fault::zero_of_weight ? T(1) : p.weight(d);
        const T product = fault == Fault::missing_term ? T(0) : x(n, d) * (1 - t * t);
        const T v = (t + product) * w * dy(n, d) + dcarry.s(n, d);
        dx(n, d) += fault == Fault::sign_of_input ? -v : v;
        const T slope = x(n, d) * t * dy(n, d);
        if (fault != Fault::zero_of_weight) grads.weight(d) += fault == Fault::sign_of_weight ? -slope : slope;
        if (fault != Fault::no_bias) grads.bias(d) += dy(n, d);
        if (fault == Fault::carry_left) continue;
        dcarry.s(n, d) = (fault == Fault::sign_of_carry ? -1 : 1) * (2 * dcarry.s(n, d) + dy(n, d));
      }
    if (fault == Fault::one_weight) grads.weight(1) *= T(1 + 1e-5);
    if (fault == Fault::nan_weight) grads.weight(dim - 1) = std::numeric_limits<T>::quiet_NaN();
  }
  template <class T, class B>
  void backward(typename B::Context& ctx, const Params<T, B>& p, In<T, 2, B> x, const Nothing<T, B>& saved,
                In<T, 2, B> dy, Carry<T, B>& dcarry, Out<T, 2, B> dx, Params<T, B>& grads,
                const Nothing<T, B>& extra = {}) const {
    Nothing<T, B> unused;
    backward(ctx, p, x, saved, dy, dcarry, dx, grads, extra, unused);
  }
};

/// u = 2 x: a branch that adds to dx, or wrongly overwrites it.
struct Double {
  bool overwrites;
  Index in_dim() const { return 2; }
  Index out_dim() const { return 2; }
  template <class T, class B, class Step = functor::NoStep<T>>
  void forward(typename B::Context& ctx, const Nothing<T, B>&, In<T, 2, B> x, Out<T, 2, B> u, Nothing<T, B>&,
               const Nothing<T, B>&, const Step& step = {}) const {
    for (Index i = 0; i < x.size(); ++i) u.data()[i] = 2 * x.data()[i];
    run_step(ctx, u, step);
  }
  template <class T, class B>
  void backward(typename B::Context&, const Nothing<T, B>&, In<T, 2, B>, const Nothing<T, B>&, In<T, 2, B> du,
                Out<T, 2, B> dx, Nothing<T, B>&, const Nothing<T, B>&, Nothing<T, B>&) const {
    for (Index i = 0; i < dx.size(); ++i) dx.data()[i] = (overwrites ? 0 : dx.data()[i]) + 2 * du.data()[i];
  }
};

/// y = softmax(x + shift). A shift changes nothing, so its gradient Σ dz is only rounding.
struct Shifted {
  Index dim = 5;
  double wrong = 0;  // added to the gradient of the shift

  template <class T, class B>
  struct Params {
    Tensor<T, 1, B> shift;
    GATEFOLD_PACK(shift)
  };
  Index in_dim() const { return dim; }
  Index out_dim() const { return dim; }
  template <class T, class B>
  Params<T, B> init(typename B::Context& ctx, Seed seed) const {
    return {uniform_tensor<T>(ctx, seed, 1, 1)};
  }
  template <class T, class B>
  static std::vector<T> softmax(View<const T, 2, B> x, Index n, T shift) {
    std::vector<T> s;
    T total = 0;
    for (Index d = 0; d < x.extent(1); ++d) total += s.emplace_back(std::exp(x(n, d) + shift));
    for (T& v : s) v /= total;
    return s;
  }
  template <class T, class B, class Step = functor::NoStep<T>>
  void forward(typename B::Context& ctx, const Params<T, B>& p, In<T, 2, B> x, Out<T, 2, B> u, Nothing<T, B>&,
               const Nothing<T, B>&, const Step& step = {}) const {
    for (Index n = 0; n < x.extent(0); ++n) {
      const auto s = softmax<T, B>(x, n, p.shift(0));
      for (Index d = 0; d < dim; ++d) u(n, d) = s[static_cast<std::size_t>(d)];
    }
    run_step(ctx, u, step);
  }
  template <class T, class B>
  void backward(typename B::Context&, const Params<T, B>& p, In<T, 2, B> x, const Nothing<T, B>&, In<T, 2, B> du,
                Out<T, 2, B> dx, Params<T, B>& grads, const Nothing<T, B>&, Nothing<T, B>&) const {
    for (Index n = 0; n < x.extent(0); ++n) {
      const auto s = softmax<T, B>(x, n, p.shift(0));
      T mean = 0;
      for (Index d = 0; d < dim; ++d) mean += s[static_cast<std::size_t>(d)] * du(n, d);
      for (Index d = 0; d < dim; ++d) {
        const T dz = s[static_cast<std::size_t>(d)] * (du(n, d) - mean);
        dx(n, d) += dz;
        grads.shift(0) += dz;
      }
    }
    grads.shift(0) += static_cast<T>(wrong);
  }
};

check::GradientReport report_of(Fault fault, const check::GradientOptions& options = {}) {
  Cpu::Context ctx(1);
  return check::gradients(ctx, Faulty{.dim = 3, .fault = fault}, options);
}

/// Returns whether a sentence begins with the name of the tensor.
bool names(const check::GradientReport& report, const std::string& tensor) {
  for (const std::string& sentence : report.sentences)
    if (sentence.rfind(tensor + "[", 0) == 0 || sentence.rfind(tensor + ":", 0) == 0) return true;
  return false;
}

/// One tensor, a function of it, and the claimed gradient.
struct Problem {
  std::vector<double> value, gradient;
  check::GradientOptions options{};

  template <class F, class R>
  check::GradientReport compare(const F& f, const R& routing) {
    const std::vector<check::GradientSlot> slots{
        {"v", value.data(), gradient.data(), static_cast<Index>(value.size())}};
    return check::compare_gradients(
        slots, [&] { return f(value); }, [&] { return std::uint64_t(routing(value)); }, options);
  }
  template <class F>
  check::GradientReport compare(const F& f) {
    return compare(f, [](const auto&) { return 0; });
  }
};

double sum_of_sines(const std::vector<double>& v) {
  double total = 0;
  for (const double x : v) total += std::sin(x);
  return total;
}

}  // namespace

TEST_CASE("gradients: a correct layer passes, and every value is checked") {
  const auto report = report_of(Fault::none);
  CHECK_MESSAGE(report, report.str());
  CHECK(report.checked == 7 * 3 + 3 + 3 + 7 * 3);  // x, weight, bias, carry
  CHECK(report.skipped == 0);
  CHECK(report.worst < 1e-6);
}

TEST_CASE("gradients: faults are found and reported with their tensor") {
  struct Expected {
    Fault fault;
    std::string tensor;
  };
  for (const Expected& e : {Expected{Fault::sign_of_input, "x"},
                            {Fault::missing_term, "x"},
                            {Fault::sign_of_weight, "weight"},
                            {Fault::one_weight, "weight"},
                            {Fault::nan_weight, "weight"},
                            {Fault::no_bias, "bias"},
                            {Fault::sign_of_carry, "carry.s"},
                            {Fault::carry_left, "carry.s"}}) {
    const auto report = report_of(e.fault);
    CAPTURE(report.str());
    CHECK_FALSE(report);
    CHECK(names(report, e.tensor));
    for (const std::string other : {"x", "weight", "bias", "carry.s"})
      if (other != e.tensor) CHECK_FALSE(names(report, other));
  }
}

TEST_CASE("gradients: NaN in the output is reported for every tensor") {
  const auto report = report_of(Fault::forward_nan);
  CHECK_FALSE(report);
  CHECK(names(report, "x"));
  CHECK(names(report, "weight"));
}

TEST_CASE("gradients: an overwritten dx is found in a residual stream") {
  Cpu::Context ctx(1);
  CHECK(check::gradients(ctx, Residual{update::Plain{}, Double{.overwrites = false}}));
  CHECK(names(check::gradients(ctx, Residual{update::Plain{}, Double{.overwrites = true}}), "x"));
  CHECK(check::gradients(ctx, Double{.overwrites = true}));  // found only by two passes (conformance.hpp)
}

TEST_CASE("gradients: a nested fault is reported with its path") {
  Cpu::Context ctx(1);
  CHECK(check::gradients(ctx, Stack{Faulty{}, 2}));
  const auto report = check::gradients(ctx, Stack{Faulty{.fault = Fault::sign_of_input}, 2});
  CHECK(names(report, "x"));
  CHECK(names(report, "layers.0.weight"));
  CHECK_FALSE(names(report, "layers.1.weight"));  // no fault lies between it and the output
}

TEST_CASE("gradients: zero gradients fail unless listed in the options") {
  CHECK(names(report_of(Fault::zero_of_weight), "weight"));
  CHECK_FALSE(report_of(Fault::zero_of_weight));
  CHECK(report_of(Fault::zero_of_weight, {.zero = {"weight"}}));
  CHECK(names(report_of(Fault::none, {.zero = {"bias"}}), "bias"));
  CHECK_FALSE(report_of(Fault::no_bias, {.zero = {"bias"}}));  // the loss depends on the bias, although zero is claimed
}

TEST_CASE("gradients (2): a gradient from rounding counts as zero") {
  Cpu::Context ctx(1);
  const auto report = check::gradients(ctx, Shifted{});
  CAPTURE(report.str());
  CHECK_FALSE(report);
  REQUIRE(report.sentences.size() == 1);
  CHECK(report.sentences[0].starts_with("shift: the gradient is zero to rounding (numeric and analytic up to "));
  CHECK(report.sentences[0].ends_with("; name it in options.zero if it should be"));
  CHECK(check::gradients(ctx, Shifted{}, {.zero = {"shift"}}));
}

TEST_CASE("gradients (2): a wrong gradient above the floor is found") {
  Cpu::Context ctx(1);
  for (const double wrong : {1e-10, -1e-10, 1e-6, 1.0}) {
    const auto report = check::gradients(ctx, Shifted{.wrong = wrong});
    CHECK_FALSE(report);
    CHECK(report.str().find("shift[0]: numeric ") != std::string::npos);
    CHECK_FALSE(check::gradients(ctx, Shifted{.wrong = wrong}, {.zero = {"shift"}}));
  }
  // The opposite case: there is a gradient, but 0 or a rounding error is claimed.
  const auto small = [](const std::vector<double>& v) { return 1 + 1e-8 * v[0]; };
  for (const double claimed : {0.0, 1e-17, -1e-8}) {
    CHECK_FALSE(Problem{{0.5}, {claimed}}.compare(small));
    Problem named{{0.5}, {claimed}};
    named.options.zero = {"v"};
    CHECK_FALSE(named.compare(small));
  }
}

TEST_CASE("gradients (2): the floor scales with the loss") {
  // A gradient as small as its loss (1e-14) is compared like any other.
  const auto tiny = [](const std::vector<double>& v) { return 1e-14 * sum_of_sines(v); };
  CHECK(Problem{{0.3}, {1e-14 * std::cos(0.3)}}.compare(tiny));
  for (const double factor : {-1.0, 0.0, 1 + 1e-4}) {
    const auto report = Problem{{0.3}, {factor * 1e-14 * std::cos(0.3)}}.compare(tiny);
    CHECK_FALSE(report);
    CHECK(report.str().find("v[0]: numeric ") != std::string::npos);
  }
  // Next to a loss of order 1 such a gradient is lost in rounding, right or wrong, and the report says so.
  const auto hidden = [](const std::vector<double>& v) { return 1 + 1e-14 * std::sin(v[0]); };
  for (const double factor : {-1.0, 1.0}) {
    const auto report = Problem{{0.3}, {factor * 1e-14 * std::cos(0.3)}}.compare(hidden);
    CHECK_FALSE(report);
    CHECK(report.str().find("v: the gradient is zero to rounding") != std::string::npos);
  }
  // If terms cancel, the loss is near 0 but has the rounding error of the terms (their size here is 2e3).
  const auto cancelling = [](const std::vector<double>& v) { return (1e3 + v[0]) - v[0] - 1e3; };
  Problem p{{0.3}, {1e-16}};
  const std::vector<check::GradientSlot> slots{{"v", p.value.data(), p.gradient.data(), 1}};
  const auto of_terms = check::compare_gradients(
      slots, [&] { return cancelling(p.value); }, [] { return std::uint64_t(0); }, {}, 2e3);
  CHECK(of_terms.str().find("v: the gradient is zero to rounding") != std::string::npos);
}

TEST_CASE("gradients: options set items, seed and scale of x") {
  CHECK(report_of(Fault::none, {.items = 2, .seed = Seed{77}, .input_scale = 3}).checked == 2 * 3 + 3 + 3 + 2 * 3);
  CHECK(report_of(Fault::none, {.items = 1}));
  CHECK_FALSE(report_of(Fault::missing_term, {.items = 1, .seed = Seed{5}}));
}

TEST_CASE("gradients: correct experts, mixtures and stacks pass") {
  Cpu::Context ctx(2);
  const auto linear = check::gradients(ctx, Linear{.model_dim = 3, .output_dim = 2});
  CHECK_MESSAGE(linear, linear.str());
  using Gate = WithAuxiliary<SoftmaxTopK, Balance, ZLoss>;
  const Mixture mixture{
      Gate{
          .scores = {.experts = 4}, .selection = {.k = 2}, .auxiliary = {Balance{.weight = 0.5}, ZLoss{.weight = 0.5}}},
      Mlp<Gelu>{.model_dim = 3, .hidden_dim = 4}};
  const auto branch = check::gradients(ctx, mixture);
  CHECK_MESSAGE(branch, branch.str());
  const auto stack = check::gradients(ctx, Stack{Residual{update::HeavyBall{.mu = 0.6, .gamma = 0.8}, mixture}, 2});
  CHECK_MESSAGE(stack, stack.str());
  // The stack has the values of x and of the parameters of two layers, and a carry as large as x.
  CHECK(stack.checked + stack.skipped == 2 * (branch.checked + branch.skipped));
}

// With k = 1 and renormalised weights each weight is 1, so the loss gives the router no gradient.
TEST_CASE("gradients: a router without gradient must be listed") {
  Cpu::Context ctx(1);
  const Mixture mixture{SoftmaxTopK{.scores = {.experts = 3}, .selection = {.k = 1}}, Linear{.model_dim = 3}};
  const auto report = check::gradients(ctx, mixture);
  CHECK(names(report, "gate.scores.weight"));
  CHECK(names(report, "gate.scores.bias"));
  CHECK_FALSE(names(report, "expert.weight"));
  const auto named = check::gradients(ctx, mixture, {.zero = {"gate.scores.weight", "gate.scores.bias"}});
  CHECK_MESSAGE(named, named.str());
}

TEST_CASE("gradients (3): sums auxiliary losses and hashes the routing") {
  Cpu::Context ctx(1);
  using Gate = WithAuxiliary<SoftmaxTopK, Balance, ZLoss>;
  const Stack stack{Residual{update::Plain{}, Mixture{Gate{.scores = {.experts = 4},
                                                           .selection = {.k = 2},
                                                           .auxiliary = {Balance{.weight = 0.5}, ZLoss{.weight = 0.5}}},
                                                      Linear{.model_dim = 3}}},
                    2};
  using Layer = std::remove_const_t<decltype(stack)>;
  const auto params = stack.init<double, Cpu>(ctx, Seed{3});
  auto x = uniform_tensor<double>(ctx, Seed{4}, 1, 5, 3);
  Tensor<double, 2, Cpu> y(5, 3);
  Nothing<double, Cpu> carry;
  Saved<Layer, double, Cpu> saved;
  auto run = [&] {
    stack.forward(ctx, params, x, carry, y, saved);
    return check::routing_of(saved);
  };
  const std::uint64_t home = run();
  CHECK(run() == home);
  double auxiliary = 0;
  for (const auto& layer : saved.layers)
    for (Index i = 0; i < 2; ++i) auxiliary += layer.calls[0].gate.auxiliary(i);
  CHECK(auxiliary > 0);
  CHECK(check::auxiliary_of(saved) == doctest::Approx(auxiliary).epsilon(1e-15));

  Index& pick = saved.layers[1].calls[0].plan.expert(9);
  pick = (pick + 1) % 4;
  CHECK(check::routing_of(saved) != home);
  pick = (pick + 3) % 4;
  CHECK(check::routing_of(saved) == home);
  std::swap(saved.layers[0].calls[0].plan.expert(0), saved.layers[0].calls[0].plan.expert(1));
  CHECK(check::routing_of(saved) != home);
}

TEST_CASE("gradients (1): the five-point difference of a quartic is exact") {
  Problem p{{0.5, -1.5}, {4 * 0.125, 4 * -3.375}};
  p.options.step = 0.1;
  p.options.relative = 1e-13;
  const auto report = p.compare([](const auto& v) { return v[0] * v[0] * v[0] * v[0] + v[1] * v[1] * v[1] * v[1]; });
  CHECK_MESSAGE(report, report.str());
  CHECK(report.checked == 2);
}

TEST_CASE("gradients: restores the values after the check") {
  Problem p{{0.3, 0.7}, {std::cos(0.3), std::cos(0.7)}};
  CHECK(p.compare(sum_of_sines));
  CHECK(p.value == std::vector<double>{0.3, 0.7});
}

TEST_CASE("gradients: the check fails only for errors above the tolerance") {
  const double slope = std::cos(0.3);
  CHECK(Problem{{0.3}, {slope * (1 + 5e-7)}}.compare(sum_of_sines));
  const auto report = Problem{{0.3}, {slope * (1 + 3e-6)}}.compare(sum_of_sines);
  CHECK_FALSE(report);
  CHECK(report.worst == doctest::Approx(3e-6).epsilon(0.01));
  CHECK(report.sentences.size() == 1);
  CHECK(report.sentences[0].rfind("v[0]: numeric 0.955", 0) == 0);
  // Small entries, too, are compared relative to the largest one.
  auto linear = [](const std::vector<double>& v) { return 1000 * v[0] + 1e-6 * v[1]; };
  CHECK(Problem{{0, 0}, {1000, 1.5e-6}}.compare(linear));
  CHECK_FALSE(Problem{{0, 0}, {1000, 1e-5}}.compare(linear));
}

TEST_CASE("gradients: a NaN gradient fails, whether numeric or analytic") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  CHECK_FALSE(Problem{{0.3, 0.4}, {std::cos(0.3), nan}}.compare(sum_of_sines));
  CHECK_FALSE(Problem{{0.3}, {1}}.compare([=](const auto&) { return nan; }));
  CHECK_FALSE(Problem{{0.3}, {nan}}.compare([=](const auto&) { return nan; }));
  Problem named{{0.3}, {nan}};
  named.options.zero = {"v"};
  CHECK_FALSE(named.compare([](const auto&) { return 0.0; }));
}

TEST_CASE("gradients: values with routing changes are skipped, within a limit") {
  // |v| has a kink at 0. The routing (`sides`) is the side of the kink on which each value lies.
  auto f = [](const std::vector<double>& v) {
    double total = 0;
    for (const double x : v) total += std::abs(x);
    return total;
  };
  auto sides = [](const std::vector<double>& v) {
    std::uint64_t hash = 0;
    for (const double x : v) hash = 2 * hash + (x > 0);
    return hash;
  };
  Problem p{std::vector<double>(30, 1.0), std::vector<double>(30, 1.0)};
  p.value[4] = 1e-5;
  p.gradient[4] = 123;  // wrong, but skipped
  auto report = p.compare(f, sides);
  CHECK_MESSAGE(report, report.str());
  CHECK(report.skipped == 1);
  CHECK(report.checked == 29);
  CHECK_FALSE(p.compare(f));  // without routing the kink is an error

  p.value[5] = -1.5e-4;  // only the outer points of the difference formula are past the kink
  report = p.compare(f, sides);
  CHECK(report.skipped == 2);
  CHECK_FALSE(report);
  CHECK(report.sentences.back() == "too many values skipped because the routing changes: 2");
  p.options.most_skipped = 0.1;
  CHECK(p.compare(f, sides));
}

TEST_CASE("gradients: checking nothing fails") {
  const auto nothing = Problem{{}, {}}.compare(sum_of_sines);
  CHECK_FALSE(nothing);
  CHECK(nothing.sentences == std::vector<std::string>{"nothing was checked"});
  Problem all_skipped{{1e-5}, {1}};
  all_skipped.options.most_skipped = 1;
  CHECK_FALSE(all_skipped.compare(sum_of_sines, [](const auto& v) { return v[0] > 0; }));
}

TEST_CASE("GradientReport: str counts checked and skipped values") {
  check::GradientReport report{.checked = 3, .skipped = 1, .worst = 0.5, .sentences = {"x[0]: wrong"}};
  CHECK_FALSE(report);
  CHECK(report.str() == "3 checked, 1 skipped, worst 0.5\n  x[0]: wrong");
  report.sentences.clear();
  CHECK(report);
}

TEST_CASE("gradients: a tensor with only skipped values fails") {
  std::vector<double> good(100, 1.0), gradient(100, 1.0);
  double flipping = 1;
  const double claimed = 12345;
  const auto report = check::compare_gradients(
      {{"good", good.data(), gradient.data(), 100}, {"flipping", &flipping, &claimed, 1}},
      [&] {
        double sum = flipping;
        for (const double v : good) sum += v;
        return sum;
      },
      [&] { return flipping == 1 ? std::uint64_t(0) : std::uint64_t(1); }, {});
  CHECK_FALSE(report);
  CHECK(report.str().find("flipping: every value was skipped") != std::string::npos);
}

namespace {

enum class LossFault { none, sign, adds, one_item_short, first_weight };

/// value = Σ w_j y_nj² / N with learned weights w.
struct Weighted {
  LossFault fault = LossFault::none;

  template <class T, class B>
  using Target = Nothing<T, B>;
  template <class T, class B>
  struct Params {
    Tensor<T, 1, B> weight;
    GATEFOLD_PACK(weight)
  };
  template <class T, class B>
  Params<T, B> init(typename B::Context& ctx, Seed seed) const {
    return {uniform_tensor<T>(ctx, seed, 1, 3)};
  }
  template <class T, class B>
  void validate(In<T, 2, B>, const Nothing<T, B>&) const {}
  template <class T, class B>
  void forward(typename B::Context&, const Params<T, B>& p, const auto&, In<T, 2, B> y, const Nothing<T, B>&,
               Out<T, 1, B> value, auto&) const {
    value(0) = 0;
    for (Index i = 0; i < y.size(); ++i) value(0) += p.weight(i % 3) * y.data()[i] * y.data()[i] / T(y.extent(0));
  }
  template <class T, class B>
  void backward(typename B::Context&, const Params<T, B>& p, const auto&, In<T, 2, B> y, const Nothing<T, B>&,
                const auto&, Out<T, 2, B> dy, Params<T, B>& grads, auto&) const {
    for (Index i = 0; i < y.size() - (fault == LossFault::one_item_short ? 3 : 0); ++i) {
      const T share = (fault == LossFault::sign ? -1 : 1) / T(y.extent(0)), v = y.data()[i];
      dy.data()[i] = (fault == LossFault::adds ? dy.data()[i] : 0) + 2 * share * p.weight(i % 3) * v;
      grads.weight(fault == LossFault::first_weight ? 0 : i % 3) += share * v * v;
    }
  }
};

Tensor<double, 2, Cpu> outputs(Cpu::Context& ctx, Index items = 5) {
  return uniform_tensor<double>(ctx, Seed{4}, 1, items, 3);
}
/// Returns the names that the sentences are about.
std::vector<std::string> found(LossFault fault) {
  Cpu::Context ctx(1);
  auto y = outputs(ctx);
  std::vector<std::string> names;
  for (const auto& sentence : check::loss_gradients(ctx, Weighted{fault}, y, {}).sentences)
    names.push_back(sentence.substr(0, sentence.find(':')));
  return names;
}

}  // namespace

TEST_CASE("loss_gradients: losses of the library pass, with ignored labels") {
  Cpu::Context ctx(2);
  auto y = outputs(ctx);
  const auto before = outputs(ctx), aim = uniform_tensor<double>(ctx, Seed{5}, 1, 5, 3);
  const std::vector<Index> labels{0, 2, -100, 1, 2};
  Tensor<double, 2, Cpu> signs(5, 1);
  for (Index n = 0; n < 5; ++n) signs(n, 0) = n % 2 ? 1 : -1;
  auto margin = uniform_tensor<double>(ctx, Seed{6}, 1, 5, 1);
  for (const auto& report :
       {check::loss_gradients(ctx, MeanSquaredError{}, y, aim),
        check::loss_gradients(ctx, CrossEntropy{.ignore = -100}, y, View<const Index, 1, Cpu>(labels)),
        check::loss_gradients(ctx, Logistic{}, margin, signs)}) {
    CHECK_MESSAGE(report, report.str());
    CHECK(report.worst < 1e-6);
  }
  for (Index i = 0; i < y.size(); ++i) CHECK(y.data()[i] == before.data()[i]);
}

TEST_CASE("loss_gradients: a learned loss is checked with its parameters") {
  Cpu::Context ctx(1);
  auto y = outputs(ctx);
  const auto report = check::loss_gradients(ctx, Weighted{}, y, {});
  CHECK_MESSAGE(report, report.str());
  CHECK(report.checked == 5 * 3 + 3);
}

TEST_CASE("loss_gradients: a wrong gradient is reported") {
  CHECK(found(LossFault::sign) == std::vector<std::string>{"y[0]", "loss.weight[0]"});
  CHECK(found(LossFault::adds) == std::vector<std::string>{"y[0]"});
  CHECK(found(LossFault::one_item_short) == std::vector<std::string>{"y[12]", "loss.weight[0]"});
  CHECK(found(LossFault::first_weight) == std::vector<std::string>{"loss.weight[0]"});
}

TEST_CASE("loss_gradients: throws the errors of the loss") {
  Cpu::Context ctx(1);
  auto y = outputs(ctx);
  const auto aim = uniform_tensor<double>(ctx, Seed{5}, 1, 4, 3);
  CHECK_THROWS_AS((void)check::loss_gradients(ctx, MeanSquaredError{}, y, aim), ArgumentError);
}

using support::message_of, support::same_bits, support::values;

namespace {

/// A minimal branch that reads ids: y[n] = weight[id[n]].
struct LookUp {
  Index count = 5, dim = 3;
  bool wrong = false;  // a fault: it writes the gradient of the next row

  template <class T, class B>
  using Items = View<const Index, 1, B>;
  template <class T, class B>
  struct Params {
    Tensor<T, 2, B> weight;
    GATEFOLD_PACK(weight)
  };
  Index in_dim() const { return count; }
  Index out_dim() const { return dim; }
  template <class T, class B>
  Params<T, B> init(typename B::Context& ctx, Seed seed) const {
    return {uniform_tensor<T>(ctx, seed, 1, count, dim)};
  }
  template <class T, class B, class Step = functor::NoStep<T>>
  void forward(typename B::Context& ctx, const Params<T, B>& p, In<Index, 1, B> x, Out<T, 2, B> u, Nothing<T, B>&,
               const Nothing<T, B>&, const Step& step = {}) const {
    for (Index n = 0; n < x.extent(0); ++n)
      for (Index d = 0; d < dim; ++d) u(n, d) = p.weight(x(n), d);
    run_step(ctx, u, step);
  }
  template <class T, class B>
  void backward(typename B::Context&, const Params<T, B>&, In<Index, 1, B> x, const Nothing<T, B>&, In<T, 2, B> du,
                Nothing<T, B>, Params<T, B>& grads, const Nothing<T, B>&, Nothing<T, B>&) const {
    for (Index n = 0; n < x.extent(0); ++n)
      for (Index d = 0; d < dim; ++d) grads.weight(wrong ? (x(n) + 1) % count : x(n), d) += du(n, d);
  }
};

auto model() { return Chain{LookUp{}, Linear{.model_dim = 3, .output_dim = 4}}; }

}  // namespace

TEST_CASE("items: a policy reads rows unless it defines ids") {
  using Model = decltype(model());
  static_assert(std::is_same_v<Items<Linear, float, Cpu>, View<const float, 2, Cpu>>);
  static_assert(std::is_same_v<ItemsGrad<Linear, float, Cpu>, View<float, 2, Cpu>>);
  static_assert(std::is_same_v<Items<Model, float, Cpu>, View<const Index, 1, Cpu>>);
  static_assert(std::is_same_v<ItemsGrad<Model, float, Cpu>, Nothing<float, Cpu>>);
  static_assert(detail_::policy::reads_ids<AsLayer<LookUp, double, Cpu>, double, Cpu>);
  static_assert(!detail_::policy::reads_ids<Chain<Linear, Linear>, double, Cpu>);
}

TEST_CASE("random_items: draws all ids, or rows within the scale") {
  Cpu::Context ctx(1);
  const auto ids = check::random_items<double>(ctx, Seed{1}, 1, as_layer<double, Cpu>(LookUp{}), 200);
  CHECK(std::set<Index>(ids.data(), ids.data() + 200) == std::set<Index>{0, 1, 2, 3, 4});
  const auto rows = check::random_items<double>(ctx, Seed{1}, 0.5, as_layer<double, Cpu>(Linear{.model_dim = 3}), 200);
  CHECK(rows.extent(1) == 3);
  double largest = 0;
  for (Index i = 0; i < rows.size(); ++i) largest = support::larger(largest, std::abs(rows.data()[i]));
  CHECK(largest <= 0.5);
  CHECK(largest > 0.4);
  CHECK(values(check::zero_items_grad<double>(ctx, as_layer<double, Cpu>(LookUp{}), 7)).empty());
  const auto dx = check::zero_items_grad<double>(ctx, as_layer<double, Cpu>(Linear{.model_dim = 2}), 2);
  CHECK(values(dx) == std::vector<double>(4, 0));
}

TEST_CASE("conformance: a chain of ids passes; wrong gradients are found") {
  const auto report = check::conformance<Cpu>(model(), {.items_are_independent = true});
  CHECK_MESSAGE(report, report.str());
  const auto alone = check::conformance<Cpu>(LookUp{}, {.items_are_independent = true});
  CHECK_MESSAGE(alone, alone.str());
  Cpu::Context ctx(1);
  CHECK(!check::gradients(ctx, Chain{LookUp{.wrong = true}, Linear{.model_dim = 3}}));
}

TEST_CASE("Trainer: ids give the bits of one-hot rows") {
  Cpu::Context ctx(2);
  const std::vector<Index> ids{3, 0, 3, 4, 1, 3}, next{0, 1, 2, 3, 0, 1};
  Tensor<double, 2, Cpu> rows(6, 5);
  for (Index n = 0; n < 6; ++n)
    for (Index v = 0; v < 5; ++v) rows(n, v) = ids[static_cast<std::size_t>(n)] == v ? 1 : 0;
  const Chain of_rows{Linear{.model_dim = 5, .output_dim = 3, .bias = false}, Linear{.model_dim = 3, .output_dim = 4}};
  Trainer reads_rows{ctx, of_rows, CrossEntropy{}, optim::Sgd{.lr = 0.5}, Seed{1}, Element<double>{}};
  Trainer reads_ids{ctx, model(), CrossEntropy{}, optim::Sgd{.lr = 0.5}, Seed{1}, Element<double>{}};
  const auto table = values(std::get<0>(reads_rows.params.layers));
  std::copy(table.begin(), table.end(), std::get<0>(reads_ids.params.layers).branch.weight.data());
  for (int t = 0; t < 3; ++t)
    CHECK(reads_ids.step(ids, next) == doctest::Approx(reads_rows.step(rows, next)).epsilon(1e-14));
  CHECK(reads_ids.evaluate(ids, next) == doctest::Approx(reads_rows.evaluate(rows, next)).epsilon(1e-14));
  CHECK(support::difference(values(reads_ids.params), values(reads_rows.params)) < 1e-13);

  Tensor<double, 2, Cpu> y(6, 4), frozen_y(6, 4);
  reads_ids.infer(ids, y);
  Carry<decltype(model()), double, Cpu> carry;
  model().begin(ctx, reads_ids.params, 6, carry);
  infer(model(), ctx, reads_ids.params, ids, carry, frozen_y);
  CHECK(same_bits(values(y), values(frozen_y)));
  const auto frozen = freeze(ctx, std::move(reads_ids.params));
  model().begin(ctx, frozen.params, 6, carry);
  infer(model(), ctx, frozen, ids, carry, frozen_y);
  CHECK(same_bits(values(y), values(frozen_y)));
}

TEST_CASE("ids: an id out of range is reported with position") {
  Cpu::Context ctx(1);
  Trainer trainer{ctx, model(), CrossEntropy{}, optim::Sgd{}, Seed{1}};
  const std::vector<Index> high{0, 4, 5}, low{-1, 0, 0}, next{0, 1, 2};
  const auto before = values(trainer.params);
  CHECK(message_of([&] { trainer.step(high, next); }) == "Trainer.step: x[2]: expected an id from 0 to 4, got 5");
  CHECK(message_of([&] { trainer.evaluate(low, next); }) ==
        "Trainer.evaluate: x[0]: expected an id from 0 to 4, got -1");
  Tensor<float, 2, Cpu> y(3, 4);
  CHECK(message_of([&] { trainer.infer(high, y); }) == "Trainer.infer: x[2]: expected an id from 0 to 4, got 5");
  auto& p = trainer.params;
  Carry<decltype(model()), float, Cpu> carry;
  Saved<decltype(model()), float, Cpu> saved;
  model().begin(ctx, p, 3, carry);
  CHECK(message_of([&] { model().forward(ctx, p, high, carry, y, saved); }) ==
        "Chain.forward: x[2]: expected an id from 0 to 4, got 5");
  CHECK(same_bits(before, values(trainer.params)));
}
