#include "gatefold/gate/auxiliary/auxiliary.hpp"

#include <doctest/doctest.h>

#include <utility>
#include <vector>

#include "gatefold/check/gradient.hpp"
#include "gatefold/expert/linear.hpp"
#include "gatefold/gate/auxiliary/balance_loss.hpp"
#include "gatefold/gate/auxiliary/z_loss.hpp"
#include "gatefold/gate/composed_gate.hpp"
#include "gatefold/layer/mixture.hpp"
#include "gatefold/layer/residual.hpp"
#include "gatefold/layer/stack.hpp"
#include "gatefold/update/plain.hpp"
#include "support/gate_outcome.hpp"
#include "support/pass.hpp"
#include "support/rounded.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

/// Heun's rule, y = x + (u(x) + u(x + u(x))) / 2: two evaluations.
struct Heun {
  static constexpr int evaluations = 2;

  template <class T, class B>
  struct Saved {
    Tensor<T, 2, B> ahead;
  };
  template <class T, class B, class F>
  void forward(typename B::Context& ctx, const Nothing<T, B>&, In<T, 2, B> x, Nothing<T, B>&, F&& f, Out<T, 2, B> y,
               Saved<T, B>& saved) const {
    auto mark = ctx.mark();
    auto first = ctx.template scratch<T>(x.extent(0), x.extent(1));
    auto second = ctx.template scratch<T>(x.extent(0), x.extent(1));
    saved.ahead.resize(x.extent(0), x.extent(1));
    f(x, first, 0);
    copy(ctx, x, saved.ahead.view());
    add(ctx, first, saved.ahead.view());
    f(saved.ahead, second, 1);
    copy(ctx, x, y);
    add_scaled(ctx, T(0.5), first, y);
    add_scaled(ctx, T(0.5), second, y);
  }
  template <class T, class B, class F>
  void backward(typename B::Context& ctx, const Nothing<T, B>&, In<T, 2, B> x, const Saved<T, B>& saved, F&& df,
                In<T, 2, B> dy, Nothing<T, B>&, Out<T, 2, B> dx, Nothing<T, B>&) const {
    auto mark = ctx.mark();
    auto half = ctx.template scratch<T>(x.extent(0), x.extent(1));
    auto dahead = ctx.template scratch<T>(x.extent(0), x.extent(1));
    fill(ctx, half, 0);
    add_scaled(ctx, T(0.5), dy, half);
    fill(ctx, dahead, 0);
    df(saved.ahead, half, dahead, 1);
    add(ctx, dy, dx);
    add(ctx, dahead, dx);
    add(ctx, dahead, half);
    df(x, half, dx, 0);
  }
};

using BalancedGate = WithAuxiliary<SoftmaxTopK, Balance, ZLoss>;

template <class Gate>
auto mixture(const Gate& gate) {
  return Mixture{gate, Linear{.model_dim = 4}};
}
auto balanced(Index k = 2, bool per_pick = false) {
  return mixture(BalancedGate{.scores = {.experts = 3},
                              .selection = {.k = k},
                              .auxiliary = {Balance{.weight = 0.7, .per_pick = per_pick}, ZLoss{.weight = 0.3}}});
}

}  // namespace

TEST_CASE("auxiliary losses: gradients equal finite differences and are added") {
  const auto agrees = [](auto loss, bool of_logits) {
    for (const auto& mask : {std::vector<double>{}, std::vector<double>{1, 0, 1, 1, 0, 1}}) {
      auto o = random_outcome(mask);
      const auto [dz, dq] = o.gradients(loss);
      auto from_one = [&](const Tensor<double, 2, Cpu>& d) {
        auto all = values(d);
        for (double& v : all) v -= 1;
        return all;
      };
      const auto g = from_one(of_logits ? dz : dq), none = from_one(of_logits ? dq : dz);
      for (const double v : none) CHECK(v == 0);
      auto& at = of_logits ? o.logits : o.q;
      const auto report = check::compare_gradients(
          {{"of", at.data(), g.data(), at.size()}}, [&] { return o.value(loss); }, [] { return 0; },
          {.of_largest = 1e-8});
      CHECK_MESSAGE(report, report.str());
    }
  };
  agrees(Balance{.weight = 2}, false);
  agrees(Balance{.weight = 2, .per_pick = true}, false);
  agrees(ZLoss{.weight = 2}, true);
}

TEST_CASE("auxiliary losses: padding does not count (transformers #28255)") {
  // with_padding returns six random items, of which items 1 and 4 are padding with the given q, z and picks.
  const std::vector<double> mask{1, 0, 1, 1, 0, 1};
  auto with_padding = [&](double q, double z, Index pick) {
    auto o = random_outcome(mask);
    for (const Index n : {1, 4})
      for (Index e = 0; e < 4; ++e) {
        o.q(n, e) = q;
        o.logits(n, e) = z;
      }
    for (const Index p : {2, 3, 8, 9}) o.plan.expert(p) = pick;
    o.plan.build(*o.ctx);
    return o;
  };
  const auto check_loss = [&](auto loss) {
    auto plain = with_padding(0.25, 0, 0);
    const double value = plain.value(loss);
    const auto [dz, dq] = plain.gradients(loss);
    for (const double v : {0.9, quiet_nan, infinity}) {
      auto o = with_padding(v, v, 3);
      CHECK(o.value(loss) == value);
      const auto [dz2, dq2] = o.gradients(loss);
      CHECK(same_bits(values(dz2, dq2), values(dz, dq)));
    }
    for (const Index n : {1, 4})
      for (Index e = 0; e < 4; ++e) {
        CHECK(dz(n, e) == 1);
        CHECK(dq(n, e) == 1);
      }
    // The value is that of the batch without the padding.
    Tensor<double, 2, Cpu> q(4, 4), z(4, 4);
    Index to = 0;
    for (const Index n : {0, 2, 3, 5}) {
      for (Index e = 0; e < 4; ++e) {
        q(to, e) = plain.q(n, e);
        z(to, e) = plain.logits(n, e);
      }
      ++to;
    }
    Outcome packed(std::move(q), {0, 1, 3, 0, 2, 1, 1, 3});
    packed.logits = std::move(z);
    CHECK(packed.value(loss) == doctest::Approx(value).epsilon(1e-14));
  };
  check_loss(Balance{.weight = 1});
  check_loss(Balance{.weight = 1, .per_pick = true});
  check_loss(ZLoss{.weight = 1});
}

TEST_CASE("auxiliary losses: only padding, or no items, gives 0") {
  const auto is_zero = [](Outcome o) {
    for (const double v : {o.value(Balance{}), o.value(Balance::reference()), o.value(ZLoss{})}) CHECK(v == 0);
    for (const auto& d : {o.gradients(Balance{}), o.gradients(ZLoss{})})
      for (const double v : values(d.first, d.second)) CHECK(v == 1);
  };
  is_zero(random_outcome(std::vector<double>(6, 0)));
  is_zero(Outcome(Tensor<double, 2, Cpu>(0, 4), {}));
}

TEST_CASE("auxiliary losses: gradients through the gate equal finite differences") {
  Cpu::Context ctx(1);
  for (const bool per_pick : {false, true}) {
    const auto report = check::gradients(ctx, balanced(2, per_pick));
    CHECK_MESSAGE(report, report.str());
  }
  const std::vector<double> mask{1, 1, 0, 1, 0, 1, 1};
  Extra<BalancedGate, double, Cpu> extra;
  extra.valid = mask;
  const auto masked = check::gradients(ctx, balanced(), {}, extra);
  CHECK_MESSAGE(masked, masked.str());
  // With k = 1 and renormalised weights, each weight is 1, so the router gets gradients only from the losses.
  const auto top1 = check::gradients(ctx, balanced(1));
  CHECK_MESSAGE(top1, top1.str());
  const auto dense = check::gradients(
      ctx, mixture(WithAuxiliary<SoftmaxDense, ZLoss>{.scores = {.experts = 3}, .auxiliary = {ZLoss{.weight = 1}}}));
  CHECK_MESSAGE(dense, dense.str());
}

TEST_CASE("auxiliary losses: count once if the rule evaluates twice") {
  Cpu::Context ctx(1);
  auto once = pass<double>(ctx, Residual{update::Plain{}, balanced()}, 7);
  auto twice = pass<double>(ctx, Residual{Heun{}, balanced()}, 7);
  once.forward();
  twice.forward();
  CHECK(check::auxiliary_of(once.saved) != 0);
  CHECK(check::auxiliary_of(twice.saved) == check::auxiliary_of(once.saved));
  CHECK(twice.saved.calls[0].gate.auxiliary.size() == 2);
  CHECK(twice.saved.calls[1].gate.auxiliary.size() == 0);
  // Without a gradient of the task only the losses' gradient remains.
  set_zero(ctx, once.dy);
  set_zero(ctx, twice.dy);
  once.backward();
  twice.backward();
  CHECK(difference(values(twice.grads), values(once.grads)) <= 1e-14);
  CHECK(difference(values(twice.dx), values(once.dx)) <= 1e-14);
  const auto report = check::gradients(ctx, Residual{Heun{}, balanced()});
  CHECK_MESSAGE(report, report.str());
}

TEST_CASE("auxiliary losses: a stack sums the losses of its layers") {
  Cpu::Context ctx(1);
  auto p = pass<double>(ctx, Stack{Residual{update::Plain{}, balanced()}, 3}, 7);
  p.forward();
  std::vector<double> each;
  for_each_mixture(p.saved, [&](const auto& m) {
    each.push_back(m.gate.auxiliary(0));
    each.push_back(m.gate.auxiliary(1));
  });
  REQUIRE(each.size() == 6);
  double sum = 0;
  for (const double v : each) {
    CHECK(v > 0);
    sum += v;
  }
  CHECK(check::auxiliary_of(p.saved) == doctest::Approx(sum).epsilon(1e-15));
  const auto report = check::gradients(ctx, Stack{Residual{update::Plain{}, balanced()}, 2});
  CHECK_MESSAGE(report, report.str());
}
