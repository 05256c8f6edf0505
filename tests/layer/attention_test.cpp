#include "gatefold/layer/attention.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "gatefold/check/conformance.hpp"
#include "support/backward_refuses.hpp"
#include "support/mixing.hpp"
#include "support/naive_moe.hpp"
#include "support/pass.hpp"
#include "support/rounded.hpp"
#include "support/slow_build.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

using Matrix = std::vector<std::vector<double>>;

struct Result {
  std::vector<double> u, log_sum_exp, entropy;
};

/// Equation (1) with the full matrix A, in loops.
template <class P>
Result attend(const P& p, const Tensor<double, 2, Cpu>& x, Index heads, Index length, bool causal,
              const std::vector<double>& valid) {
  const Index items = x.extent(0), dim = x.extent(1), width = dim / heads;
  if (length == 0) length = items;
  const auto times = [&](const Matrix& a, const Tensor<double, 2, Cpu>& w) {
    Matrix y;
    for (const auto& row : a)
      y.push_back(naive::affine(
          row, dim, [&](Index d, Index j) { return w(d, j); }, [](Index) { return 0.0; }));
    return y;
  };
  Matrix rows;
  for (Index n = 0; n < items; ++n) rows.push_back(naive::row(x, n));
  const Matrix q = times(rows, p.query), k = times(rows, p.key), v = times(rows, p.value);
  Matrix context(std::size_t(items), std::vector<double>(std::size_t(dim), 0));
  Result result;
  for (Index i = 0; i < items; ++i)
    for (Index h = 0; h < heads; ++h) {
      double total = 0;
      std::vector<std::pair<Index, double>> seen;
      for (Index j = 0; j < items; ++j) {
        if (j / length != i / length || (causal && j > i)) continue;
        if (!valid.empty() && (valid[std::size_t(i)] == 0 || valid[std::size_t(j)] == 0)) continue;
        double dot = 0;
        for (Index d = h * width; d < (h + 1) * width; ++d)
          dot += q[std::size_t(i)][std::size_t(d)] * k[std::size_t(j)][std::size_t(d)];
        seen.push_back({j, std::exp(dot / std::sqrt(double(width)))});
        total += seen.back().second;
      }
      result.log_sum_exp.push_back(seen.empty() ? 0 : std::log(total));
      std::vector<double> a;
      for (const auto& [j, weight] : seen) a.push_back(weight / total);
      result.entropy.push_back(naive::entropy(a));
      for (const auto& [j, weight] : seen)
        for (Index d = h * width; d < (h + 1) * width; ++d)
          context[std::size_t(i)][std::size_t(d)] += weight / total * v[std::size_t(j)][std::size_t(d)];
    }
  for (const auto& row : times(context, p.output)) result.u.insert(result.u.end(), row.begin(), row.end());
  return result;
}

auto row_of(const auto& t, Index n) { return naive::row(t, n); }

}  // namespace

TEST_CASE("Attention (1): outputs, log-sum-exp and entropy equal softmax loops") {
  Cpu::Context ctx(2);
  // With length 4, the last sequence of the second mask is all padding. In the third mask, two sequences begin with
  // padding, so their first rows see no key if attention is causal.
  const std::vector<std::vector<double>> masks{
      {}, {1, 1, 1, 0, 1, 0, 1, 1, 0, 0, 0, 0}, {0, 0, 1, 1, 0, 1, 0, 1, 1, 1, 1, 0}};
  for (const bool causal : {true, false})
    for (const Index heads : {1, 2, 3, 6})
      for (const Index length : {0, 1, 4})
        for (const auto& mask : masks) {
          auto p = pass<double>(ctx, Attention{.model_dim = 6, .heads = heads, .causal = causal}, 12);
          p.extra.length = length;
          if (!mask.empty()) p.extra.valid = mask;
          p.forward();
          const Result expected = attend(p.params.branch, p.x, heads, length, causal, mask);
          CHECK(difference(values(p.y), expected.u) <= 1e-13);
          CHECK(difference(values(p.saved.branch.log_sum_exp), expected.log_sum_exp) <= 1e-13);
          CHECK(difference(values(p.saved.branch.entropy), expected.entropy) <= 1e-13);
        }
}

TEST_CASE("Attention (1): long sequences equal loops for any thread count" * doctest::skip(support::slow_build)) {
  for (const bool causal : {true, false})
    for (const Index length : {100, 300, 600}) {
      CAPTURE(causal);
      CAPTURE(length);
      std::vector<double> mask, first;
      for (Index n = 0; n < 600; ++n) mask.push_back(n % 7 == 3 || n / 50 == 2 ? 0 : 1);
      for (const int threads : {1, 2, 3, 8}) {
        Cpu::Context ctx(threads);
        auto p = pass<double>(ctx, Attention{.model_dim = 6, .heads = 2, .causal = causal}, 600);
        p.extra = {.length = length, .valid = mask};
        p.forward();
        p.backward();
        const auto all = values(p.y, p.dx, p.grads);
        if (first.empty()) {
          first = all;
          const Result expected = attend(p.params.branch, p.x, 2, length, causal, mask);
          CHECK(difference(values(p.y), expected.u) <= 1e-13);
          CHECK(difference(values(p.saved.branch.log_sum_exp), expected.log_sum_exp) <= 1e-13);
          CHECK(difference(values(p.saved.branch.entropy), expected.entropy) <= 1e-12);
        }
        CHECK(same_bits(all, first));
      }
    }
}

TEST_CASE("Attention: a row without visible keys gives 0") {
  Cpu::Context ctx(1);
  auto p = pass<double>(ctx, Attention{.model_dim = 4, .heads = 2}, 6);
  const std::vector<double> mask{0, 1, 1, 0, 0, 0};
  p.extra = {.length = 3, .valid = mask};
  p.forward();
  for (const Index n : {0, 3, 4, 5}) CHECK(row_of(p.y, n) == std::vector<double>(4, 0));
  CHECK(row_of(p.y, 1) != std::vector<double>(4, 0));
  const auto trace = Attention{.model_dim = 4, .heads = 2}.trace<double, Cpu>(p.params.branch, p.saved.branch);
  CHECK(trace.valid.data() == mask.data());  // a gate that follows this attention excludes the same keys
}

TEST_CASE("Attention: a later token changes no earlier output") {
  Cpu::Context ctx(1);
  for (const float garbage : {100.f, std::numeric_limits<float>::quiet_NaN()}) {
    auto clean = pass<float>(ctx, Attention{.model_dim = 6, .heads = 2}, 20),
         changed = pass<float>(ctx, Attention{.model_dim = 6, .heads = 2}, 20);
    for (Index n = 13; n < 20; ++n)
      for (Index d = 0; d < 6; ++d) changed.x(n, d) = garbage;
    clean.forward();
    changed.forward();
    CHECK(std::memcmp(clean.y.data(), changed.y.data(), 13 * 6 * sizeof(float)) == 0);
    CHECK(row_of(clean.y, 13) != row_of(changed.y, 13));
  }
  auto p = pass<double>(ctx, Attention{.model_dim = 6, .heads = 2}, 20);
  for (Index n = 13; n < 20; ++n)
    for (Index d = 0; d < 6; ++d) p.dy(n, d) = 0;
  p.forward();
  p.backward();
  for (Index n = 0; n < 20; ++n)
    for (Index d = 0; d < 6; ++d) CHECK((p.dx(n, d) == 0) == (n >= 13));
}

TEST_CASE("Attention: two sequences never mix, bit for bit") {
  Cpu::Context ctx(1);
  for (const bool causal : {true, false}) {
    const Attention attention{.model_dim = 6, .heads = 2, .causal = causal};
    auto both = pass<float>(ctx, attention, 10), changed = pass<float>(ctx, attention, 10),
         alone = pass<float>(ctx, attention, 5);
    both.extra.length = changed.extra.length = 5;
    for (Index n = 0; n < 5; ++n)
      for (Index d = 0; d < 6; ++d) changed.x(n, d) = std::numeric_limits<float>::quiet_NaN();
    copy(ctx, both.x.view().rows(5, 5), alone.x.view());
    both.forward();
    changed.forward();
    alone.forward();
    CHECK(std::memcmp(&both.y(5, 0), &changed.y(5, 0), 5 * 6 * sizeof(float)) == 0);
    CHECK(std::memcmp(&both.y(5, 0), &alone.y(0, 0), 5 * 6 * sizeof(float)) == 0);
  }
}

TEST_CASE("Attention: padding affects no output or gradient (transformers #45621)") {
  Cpu::Context ctx(1);
  const std::vector<float> mask{1, 1, 0, 1, 1, 1, 1, 0};
  const Attention attention{.model_dim = 6, .heads = 3, .causal = false};
  auto clean = pass<float>(ctx, attention, 8), poisoned = pass<float>(ctx, attention, 8);
  clean.extra = poisoned.extra = {.length = 4, .valid = mask};
  for (const Index n : {2, 7})
    for (Index d = 0; d < 6; ++d) poisoned.x(n, d) = std::numeric_limits<float>::quiet_NaN();
  for (const Index n : {2, 7})
    for (Index d = 0; d < 6; ++d) poisoned.dy(n, d) = std::numeric_limits<float>::quiet_NaN();
  for (auto* p : {&clean, &poisoned}) {
    p->forward();
    p->backward();
  }
  CHECK(same_bits(values(poisoned.y, poisoned.dx, poisoned.grads), values(clean.y, clean.dx, clean.grads)));
  for (const Index n : {2, 7})
    for (Index d = 0; d < 6; ++d) {
      CHECK(clean.y(n, d) == 0);
      CHECK(clean.dx(n, d) == 0);
    }
}

TEST_CASE("Attention: scores of ±1000 do not overflow") {
  Cpu::Context ctx(1);
  auto p = pass<float>(ctx, Attention{.model_dim = 1, .causal = false}, 2);
  for_each_tensor([&](const Name&, auto& t) { fill(ctx, t.view(), 1); }, p.params);
  p.x(0, 0) = 40;
  p.x(1, 0) = -40;
  p.forward();
  CHECK(values(p.y) == std::vector<double>{40, -40});
  CHECK(values(p.saved.branch.log_sum_exp) == std::vector<double>{1600, 1600});
}

TEST_CASE("Attention: gradients and conformance") {
  for (const bool causal : {true, false})
    for (const Index heads : {1, 2}) {
      const auto report = check::conformance<Cpu, double>(Attention{.model_dim = 4, .heads = heads, .causal = causal});
      CHECK_MESSAGE(report, report.str());
    }
  Cpu::Context ctx(1);
  for (const bool causal : {true, false})
    for (const auto& mask : {std::vector<double>{}, {0, 1, 1, 0, 1, 0, 1, 0, 0, 0, 0, 0}}) {
      Extra<Attention, double, Cpu> extra;
      extra.length = 4;
      if (!mask.empty()) extra.valid = mask;
      const auto report =
          check::gradients(ctx, Attention{.model_dim = 6, .heads = 2, .causal = causal}, {.items = 12}, extra);
      CHECK_MESSAGE(report, report.str());
    }
}

TEST_CASE("Attention: the trace reproduces the probabilities and outputs of (1)") {
  Cpu::Context ctx(1);
  auto p = pass<double>(ctx, Attention{.model_dim = 6, .heads = 2}, 8);
  p.extra.length = 4;
  p.forward();
  const auto trace = p.layer.trace(p.params, p.saved);
  CHECK(trace.length == 4);
  CHECK(trace.heads() == 2);
  CHECK(trace.causal);
  CHECK(trace.scale == rounded(1 / std::sqrt(3.0)));
  CHECK(trace.output.data() == p.params.branch.output.data());
  std::vector<double> u(std::size_t(p.y.size()), 0);
  for (Index i = 0; i < 8; ++i)
    for (Index h = 0; h < 2; ++h) {
      double total = 0;
      for (Index j = i / 4 * 4; j <= i; ++j) {
        double dot = 0;
        for (Index d = 3 * h; d < 3 * h + 3; ++d) dot += trace.q(i, d) * trace.k(j, d);
        const double a = std::exp(trace.scale * dot - trace.log_sum_exp(i, h));
        total += a;
        for (Index d = 3 * h; d < 3 * h + 3; ++d)
          for (Index o = 0; o < 6; ++o) u[std::size_t(i * 6 + o)] += a * trace.v(j, d) * trace.output(d, o);
      }
      CHECK(total == doctest::Approx(1).epsilon(1e-14));
    }
  CHECK(difference(values(p.y), u) <= 1e-13);
}

TEST_CASE("Attention: backward includes the adjoint of the trace") {
  Cpu::Context ctx(1);
  const Attention attention{.model_dim = 6, .heads = 2};
  auto p = pass<double>(ctx, attention, 8);
  p.extra.length = 4;
  auto given = [&](std::uint64_t seed, Index columns, Index rows = 8) {
    return uniform_tensor<double>(ctx, Seed{seed}, 1, rows, columns);
  };
  auto dq = given(11, 6), dk = given(12, 6), dv = given(13, 6), dlse = given(14, 2), doutput = given(15, 6, 6);
  AttentionTrace<double, Cpu> dtrace{dq, dk, dv, dlse, doutput};
  p.forward();
  attention.backward(ctx, p.params.branch, p.x, p.saved.branch, p.dy, p.dx, p.grads.branch, p.extra, dtrace);
  std::vector<check::GradientSlot> slots{{"x", p.x.data(), std::as_const(p.dx).data(), p.x.size()}};
  for_each_tensor(
      [&](const Name& name, auto& t, const auto& g) {
        slots.push_back({name.str(), t.data(), g.data(), t.size()});
      },
      p.params, std::as_const(p.grads));
  const auto dot = [](const auto& a, const auto& b) {
    double f = 0;
    for (Index i = 0; i < a.size(); ++i) f += a.data()[i] * b.data()[i];
    return f;
  };
  const auto report = check::compare_gradients(
      slots,
      [&] {
        p.forward();
        const auto& s = p.saved.branch;
        return dot(p.y, p.dy) + dot(s.q, dq) + dot(s.k, dk) + dot(s.v, dv) + dot(s.log_sum_exp, dlse) +
               dot(p.params.branch.output, doutput);
      },
      [] { return 0; }, {});
  CHECK_MESSAGE(report, report.str());
}

TEST_CASE("Attention: wrong shapes or saved throw before backward writes") {
  check_backward_refuses("Attention", Attention{.model_dim = 6, .heads = 2}, "saved.q: expected [10, 6], got [0, 0]");
}

TEST_CASE("Attention: wrong options or shapes throw before any write") {
  Cpu::Context ctx(1);
  CHECK(message_of([&] { (void)Attention{}.init<float, Cpu>(ctx, {}); }) ==
        "Attention: model_dim: expected at least 1, got 0");
  CHECK(message_of([&] { (void)Attention{.model_dim = 6, .heads = 4}.init<float, Cpu>(ctx, {}); }) ==
        "Attention: heads: expected a divisor of model_dim = 6, got 4");
  CHECK(message_of([&] { (void)Attention{.model_dim = 6, .heads = 0}.init<float, Cpu>(ctx, {}); }) ==
        "Attention: heads: expected a divisor of model_dim = 6, got 0");
  CHECK(Attention{.heads = 2}.with_model_dim(6).model_dim == 6);
  CHECK(message_of([] { (void)Attention{.model_dim = 5}.with_model_dim(6); }) ==
        "Attention: model_dim: expected 6 (the width of the items), got 5");

  const auto message = [&](auto&& change) {
    auto p = pass<float>(ctx, Attention{.model_dim = 6, .heads = 2}, 10);
    change(p);
    const auto text = message_of([&] { p.forward(); });
    CHECK(p.untouched());
    CHECK(p.saved.branch.q.size() == 0);
    return text;
  };
  CHECK(message([](auto& p) { p.extra.length = 4; }) ==
        "Attention.forward: sequence.length: expected a divisor of the number of items 10, got 4");
  CHECK(message([](auto& p) { p.extra.length = -1; }) ==
        "Attention.forward: sequence.length: expected at least 0, got -1");
  const std::vector<float> mask(9, 1);
  CHECK(message([&](auto& p) { p.extra.valid = mask; }) == "Attention.forward: sequence.valid: expected [10], got [9]");
  CHECK(message([&](auto& p) { p.params.branch.value.resize(6, 5); }) ==
        "Attention: params.value: expected [6, 6], got [6, 5]");
  CHECK(message([&](auto& p) { p.x.resize(10, 5); }) == "Attention.forward: x: expected [?, 6], got [10, 5]");
}
