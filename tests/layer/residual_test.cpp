#include "gatefold/layer/residual.hpp"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "gatefold/check/conformance.hpp"
#include "gatefold/expert/layer_norm.hpp"
#include "gatefold/expert/linear.hpp"
#include "gatefold/expert/mlp.hpp"
#include "gatefold/gate/composed_gate.hpp"
#include "gatefold/layer/attention.hpp"
#include "gatefold/layer/mixture.hpp"
#include "gatefold/layer/no_residual.hpp"
#include "gatefold/layer/pre_norm.hpp"
#include "gatefold/update/momentum.hpp"
#include "gatefold/update/plain.hpp"
#include "support/naive_moe.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

auto mixture() {
  return Mixture{SoftmaxTopK{.scores = {.experts = 3}, .selection = {.k = 2}},
                 Mlp<Gelu>{.model_dim = 4, .hidden_dim = 5}};
}

/// A branch u = 3 x, followed by the step.
struct Triple {
  Index in_dim() const { return 4; }
  Index out_dim() const { return 4; }
  template <class T, class B>
  Nothing<T, B> init(auto&, Seed) const {
    return {};
  }
  template <class T, class B>
  void forward(auto& ctx, const Nothing<T, B>& p, In<T, 2, B> x, Out<T, 2, B> u, auto&, const auto& extra,
               const auto& step) const {
    infer<T, B>(ctx, p, x, u, extra, step);
  }
  template <class T, class B>
  void infer(auto& ctx, const Nothing<T, B>&, In<T, 2, B> x, Out<T, 2, B> u, const auto&, const auto& step) const {
    fill(ctx, u, 0);
    add_scaled(ctx, T(3), x, u);
    run_step(ctx, u, step);
  }
  template <class T, class B>
  void backward(auto& ctx, const Nothing<T, B>&, In<T, 2, B>, const Nothing<T, B>&, In<T, 2, B> du, Out<T, 2, B> dx,
                auto&&...) const {
    add_scaled(ctx, T(3), du, dx);
  }
};

/// y = x + u(u(x)). The rule declares `told` evaluations, and its backward passes evaluation `asked_back` to df.
template <int told, int asked_back>
struct Twice {
  static constexpr int evaluations = told;
  template <class T, class B>
  void forward(auto& ctx, const Nothing<T, B>&, In<T, 2, B> x, auto&, auto&& f, Out<T, 2, B> y, auto&) const {
    auto mark = ctx.mark();
    const auto first = ctx.template scratch<T>(x.extent(0), x.extent(1));
    f(x, first, 0);
    f(View<const T, 2, B>(first), y, 1);
    add(ctx, x, y);
  }
  template <class T, class B>
  void backward(auto&, const Nothing<T, B>&, In<T, 2, B> x, const auto&, auto&& df, In<T, 2, B> dy, auto&,
                Out<T, 2, B> dx, auto&) const {
    df(x, dy, dx, asked_back);
  }
};

}  // namespace

TEST_CASE("Residual (1): applies the rule, starting from a nonzero carry") {
  Cpu::Context ctx(1);
  auto plain = pass<double>(ctx, Residual{update::Plain{}, mixture()}, 9);
  auto ball = pass<double>(ctx, Residual{update::HeavyBall{.mu = 0.6, .gamma = 1.5}, mixture()}, 9);
  fill_uniform(ctx, Seed{9}, -1, 1, ball.carry.p);
  const auto before = values(ball.carry);
  plain.forward();
  ball.forward();
  std::vector<double> y, y_ball, p_ball;
  for (Index n = 0; n < 9; ++n) {
    const auto x = naive::row(plain.x, n);
    const auto u = naive::mixture(plain.params.branch, x, 2, true, [&](Index e, const naive::Row& in) {
      return naive::mlp(plain.params.branch.expert, e, in, naive::gelu);
    });
    for (std::size_t d = 0; d < 4; ++d) {
      const double p = 0.6 * before[std::size_t(n) * 4 + d] + u[d];
      y.push_back(x[d] + u[d]);
      p_ball.push_back(p);
      y_ball.push_back(x[d] + 1.5 * p);
    }
  }
  CHECK(difference(values(plain.y), y) <= 1e-14);
  CHECK(difference(values(ball.y), y_ball) <= 1e-14);
  CHECK(difference(values(ball.carry), p_ball) <= 1e-14);
}

TEST_CASE("Residual: a variadic branch does not get the rule's step") {
  Cpu::Context ctx(1);
  auto p = pass<double>(ctx, Residual{update::HeavyBall{.mu = 0.5, .gamma = 2}, Triple{}}, 5);
  fill(ctx, p.carry.p.view(), 1);
  p.forward();
  auto inferred = pass<double>(ctx, Residual{update::HeavyBall{.mu = 0.5, .gamma = 2}, Triple{}}, 5);
  fill(ctx, inferred.carry.p.view(), 1);
  inferred.infer();
  for (Index i = 0; i < p.x.size(); ++i) {
    const double x = p.x.data()[i];
    CHECK(p.y.data()[i] == doctest::Approx(x + 2 * (0.5 + 3 * x)).epsilon(1e-15));
  }
  CHECK(same_bits(values(p.y, p.carry), values(inferred.y, inferred.carry)));
}

TEST_CASE("Residual: parameter names begin with `branch`") {
  Cpu::Context ctx(1);
  auto p = pass<float>(ctx, Residual{update::HeavyBall{}, PreNorm{LayerNorm{}, mixture()}}, 2);
  std::vector<std::string> names;
  for_each_tensor([&](const Name& name, const auto&) { names.push_back(name.str()); }, p.params);
  CHECK(names == std::vector<std::string>{"branch.norm.gain", "branch.norm.bias", "branch.branch.gate.scores.weight",
                                          "branch.branch.gate.scores.bias", "branch.branch.expert.up",
                                          "branch.branch.expert.up_bias", "branch.branch.expert.down",
                                          "branch.branch.expert.down_bias"});
}

TEST_CASE("Residual: wrong shapes throw before any write") {
  Cpu::Context ctx(1);
  const auto message = [&](const auto& layer, auto&& change) {
    auto p = pass<float>(ctx, layer, 5);
    change(p);
    const auto carried = values(p.carry);
    const auto text = message_of([&] { p.forward(); });
    CHECK(p.untouched());
    CHECK(values(p.carry) == carried);
    return text;
  };
  const Residual layer{update::HeavyBall{}, mixture()};
  CHECK(message(layer, [](auto& p) { p.x.resize(5, 3); }) == "Residual.forward: x: expected [?, 4], got [5, 3]");
  CHECK(message(layer, [](auto& p) { p.y = constant_tensor<float>(p.ctx, p.sentinel, 6, 4); }) ==
        "Residual.forward: y: expected [5, 4], got [6, 4]");
  CHECK(message(layer, [](auto& p) { p.params.branch.expert.down_bias.resize(3, 3); }) ==
        "Mlp: params.down_bias: expected [3, 4], got [3, 3]");
  const Residual narrows{update::Plain{}, OneExpert{Linear{.model_dim = 4, .output_dim = 3}}};
  CHECK(message_of([&] { narrows.init<float, Cpu>(ctx, Seed{1}); }) ==
        "Residual: branch.out_dim: expected 4 (its in_dim; NoResidual allows others), got 3");
}

TEST_CASE("Residual: gradients around padded attention equal finite differences") {
  Cpu::Context ctx(1);
  const std::vector<double> mask{1, 1, 0, 1, 1, 1, 1, 0};
  const auto around = [&](auto rule) {
    const Residual layer{rule, PreNorm{LayerNorm{}, Attention{.model_dim = 4, .heads = 2}}};
    Extra<decltype(layer), double, Cpu> extra;
    extra.length = 4;
    extra.valid = mask;
    const auto report = check::gradients(ctx, layer, {.items = 8}, extra);
    CHECK_MESSAGE(report, report.str());
  };
  around(update::Plain{});
  around(update::HeavyBall{});
}

TEST_CASE("Residual: returns the branch's trace") {
  Cpu::Context ctx(1);
  auto p = pass<float>(ctx, Residual{update::Plain{}, PreNorm{LayerNorm{}, Attention{.model_dim = 4, .heads = 2}}}, 8);
  p.forward();
  CHECK(p.layer.trace(p.params, p.saved).q.data() == p.saved.calls[0].branch.q.data());
}

TEST_CASE("Residual: an empty dcarry throws before backward writes") {
  Cpu::Context ctx(1);
  auto p = pass<double>(ctx, Residual{update::HeavyBall{}, OneExpert{Linear{.model_dim = 3}}}, 4);
  p.forward();
  p.dcarry = {};
  CHECK(message_of([&] { p.backward(); }) == "HeavyBall: carry.p: expected [4, 3], got [0, 0]");
  for (const double v : values(p.dx, p.grads)) CHECK(v == 0);
}

TEST_CASE("Residual: a wrong number of evaluations by the rule throws") {
  Cpu::Context ctx(1);
  CHECK(message_of([&] {
          pass<double>(ctx, Residual{Twice<1, 0>{}, Triple{}}, 2).forward();
        }) ==
        "Residual.forward: call of the branch: expected less than 1 (the rule's `static constexpr int evaluations`), "
        "got 1");
  const auto back = [&](auto rule) {
    auto p = pass<double>(ctx, Residual{rule, Triple{}}, 2);
    p.forward();
    p.backward();
  };
  const auto sentence_of = [](const std::string& got) {
    return "Residual.backward: call of the branch: expected less than 2 (the rule's `static constexpr int "
           "evaluations`), got " +
           got;
  };
  CHECK_NOTHROW(back(Twice<2, 1>{}));
  CHECK(message_of([&] { back(Twice<2, 2>{}); }) == sentence_of("2"));
  CHECK(message_of([&] { back(Twice<2, -1>{}); }) == sentence_of("-1"));
}
