#include "gatefold/routing/dense_plan.hpp"

#include <doctest/doctest.h>

#include <utility>
#include <vector>

#include "gatefold/check/gradient.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

constexpr Index experts = 2, each = 3, dim = 4;

/// A plan with random weights for N items. Expert e multiplies its slots by e + 2.
struct Run {
  Cpu::Context ctx{2};
  Index items, length;
  std::vector<double> valid;
  DensePlan<double, Cpu> plan;
  Tensor<double, 2, Cpu> x, z, out, dout;

  Run(Index count, Index of_length, std::vector<double> mask = {})
      : items(count), length(of_length), valid(std::move(mask)) {
    plan.resize(ctx, items, experts, each, Sequence<double, Cpu>{length, valid});
    fill_uniform(ctx, Seed{1}, 0.1, 1, plan.dispatch_weight);
    fill_uniform(ctx, Seed{2}, 0.1, 1, plan.combine_weight);
    for (Index n = 0; n < items; ++n)
      if (padding(n)) {
        for (Index j = 0; j < experts * each; ++j) {
          plan.combine_weight(n, j) = 0;
          plan.dispatch_weight(n / length * experts * each + j, n % length) = 0;
        }
      }
    x = uniform_tensor<double>(ctx, Seed{3}, 1, items, dim);
    dout = uniform_tensor<double>(ctx, Seed{4}, 1, items, dim);
    out = constant_tensor<double>(ctx, 777, items, dim);
    z.resize(items / length * experts * each, dim);
  }
  bool padding(Index n) const { return !valid.empty() && valid[std::size_t(n)] == 0; }
  /// Dispatches x, computes z with the experts, and combines z into out.
  void forward() {
    const auto in = plan.dispatch(ctx, x);
    for (Index s = 0; s < in.groups.slots; ++s)
      for (Index d = 0; d < dim; ++d) z(s, d) = double(in.groups.expert(s) + 2) * in.x(in.groups.row(s), d);
    plan.combine(ctx, z, out);
  }
  /// Equations (1) and (2) in loops.
  std::vector<double> expected() const {
    std::vector<double> all;
    for (Index n = 0; n < items; ++n)
      for (Index d = 0; d < dim; ++d) {
        double sum = 0;
        const Index g = n / length;
        for (Index j = 0; j < experts * each && !padding(n); ++j) {
          double slot = 0;
          for (Index m = g * length; m < (g + 1) * length; ++m)
            if (!padding(m)) slot += plan.dispatch_weight(g * experts * each + j, m - g * length) * source(m, d);
          sum += plan.combine_weight(n, j) * double(j / each + 2) * slot;
        }
        all.push_back(sum);
      }
    return all;
  }
  double source(Index n, Index d) const { return plan.inputs.size() > 0 ? plan.inputs(n, d) : x(n, d); }
};

}  // namespace

TEST_CASE("DensePlan (1), (2): slots and outputs are the weighted sums") {
  for (const Index length : {12, 4, 1}) {
    CAPTURE(length);
    Run run(12, length);
    run.forward();
    CHECK(difference(values(run.out), run.expected()) <= 1e-14);
    CHECK(run.plan.items() == 12);
    CHECK(run.plan.experts() == experts);
    CHECK(run.plan.sequences() == 12 / length);
  }
}

TEST_CASE("DensePlan: the slots of each expert are contiguous") {
  Run run(6, 3);
  const auto groups = run.plan.groups();
  CHECK(groups.slots == 12);
  CHECK(groups.offsets(0) == 0);
  CHECK(groups.offsets(1) == 6);
  CHECK(groups.offsets(2) == 12);
  std::vector<Index> rows;
  for (Index s = 0; s < 12; ++s) rows.push_back(groups.row(s));
  CHECK(rows == std::vector<Index>{0, 1, 2, 6, 7, 8, 3, 4, 5, 9, 10, 11});
}

TEST_CASE("DensePlan: padding is never read and gets 0") {
  Run run(6, 3, {1, 0, 1, 1, 1, 0});
  for (const Index n : {1, 5})
    for (Index d = 0; d < dim; ++d) run.x(n, d) = run.dout(n, d) = quiet_nan;
  run.forward();
  CHECK(difference(values(run.out), run.expected()) <= 1e-14);
  for (const Index n : {1, 5})
    for (Index d = 0; d < dim; ++d) CHECK(run.out(n, d) == 0);
  auto mark = run.ctx.mark();
  auto d = run.plan.grad(run.ctx);
  auto dz = constant_tensor<double>(run.ctx, 0, 12, dim), dx = constant_tensor<double>(run.ctx, 0, 6, dim);
  run.plan.combine_backward(run.ctx, run.z, run.dout, dz, d);
  run.plan.dispatch_backward(run.ctx, run.x, dz, dx, d);
  for (const double v : values(dz, dx)) CHECK(std::isfinite(v));
  // An item that is NaN changes its own sequence, but neither the other sequence nor padding.
  run.x(0, 0) = quiet_nan;
  run.forward();
  CHECK(std::isnan(run.out(2, 0)));
  for (Index n : {1, 3, 4, 5}) CHECK(std::isfinite(run.out(n, 0)));
}

TEST_CASE("DensePlan: gradients of items and weights equal finite differences") {
  for (const bool given : {false, true})
    for (const Index length : {6, 3}) {
      CAPTURE(given);
      CAPTURE(length);
      Run run(6, length, length == 3 ? std::vector<double>{1, 1, 0, 1, 1, 1} : std::vector<double>{});
      if (given) run.plan.inputs = uniform_tensor<double>(run.ctx, Seed{5}, 1, 6, dim);
      if (given && length == 3)
        for (Index d = 0; d < dim; ++d) run.plan.inputs(2, d) = 0;
      run.forward();
      auto mark = run.ctx.mark();
      auto d = run.plan.grad(run.ctx);
      auto dz = constant_tensor<double>(run.ctx, 777, run.z.extent(0), dim);
      auto dslots = constant_tensor<double>(run.ctx, 0, run.z.extent(0), dim);
      auto dx = constant_tensor<double>(run.ctx, 0, 6, dim);
      run.plan.combine_backward(run.ctx, run.z, run.dout, dz, d);
      for (Index s = 0; s < dz.extent(0); ++s)
        for (Index c = 0; c < dim; ++c) dslots(s, c) = double(run.plan.groups().expert(s) + 2) * dz(s, c);
      run.plan.dispatch_backward(run.ctx, run.x, dslots, dx, d);
      CHECK(d.inputs.empty() == !given);
      std::vector<check::GradientSlot> slots{
          {"dispatch", run.plan.dispatch_weight.data(), d.dispatch_weight.data(), d.dispatch_weight.size()},
          {"combine", run.plan.combine_weight.data(), d.combine_weight.data(), d.combine_weight.size()}};
      if (given) {
        slots.push_back({"inputs", run.plan.inputs.data(), d.inputs.data(), d.inputs.size()});
        for (const double v : values(dx)) CHECK(v == 0);
      } else {
        slots.push_back({"x", run.x.data(), dx.data(), dx.size()});
      }
      if (length == 3) {  // differences would change the weights of padding, which must be 0
        slots.erase(slots.begin(), slots.begin() + 2);
        for (Index j = 0; j < experts * each; ++j) CHECK(d.combine_weight(2, j) == 0);
      }
      const auto report = check::compare_gradients(
          slots,
          [&] {
            run.forward();
            double f = 0;
            for (Index i = 0; i < run.out.size(); ++i) f += run.out.data()[i] * run.dout.data()[i];
            return f;
          },
          [] { return 0; }, {});
      CHECK_MESSAGE(report, report.str());
    }
}

TEST_CASE("DensePlan: an empty batch has no slots") {
  Cpu::Context ctx(1);
  for (const Index length : {0, 4}) {
    DensePlan<double, Cpu> plan;
    plan.resize(ctx, 0, experts, each, Sequence<double, Cpu>{length});
    Tensor<double, 2, Cpu> none(0, dim);
    const auto in = plan.dispatch(ctx, none);
    CHECK(in.groups.slots == 0);
    for (Index e = 0; e <= experts; ++e) CHECK(in.groups.offsets(e) == 0);
    CHECK_NOTHROW(plan.combine(ctx, none, none));
  }
}
