#include "gatefold/gate/soft_moe.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "gatefold/check/conformance.hpp"
#include "gatefold/expert/mlp.hpp"
#include "gatefold/layer/mixture.hpp"
#include "gatefold/layer/residual.hpp"
#include "gatefold/update/momentum.hpp"
#include "support/naive_moe.hpp"
#include "support/pass.hpp"
#include "support/rounded.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

constexpr Index dim = 4;

auto layer(SoftMoe gate, Index experts, Index slots = 2) {
  gate.count = experts;
  gate.slots = slots;
  return Residual{update::HeavyBall{.mu = 0.6, .gamma = 1},
                  Mixture{gate, Mlp<Gelu>{.model_dim = dim, .hidden_dim = 3}}};
}
template <class T = double>
auto run(Cpu::Context& ctx, SoftMoe gate, Index experts, Index items, Index slots = 2) {
  return pass<T>(ctx, layer(gate, experts, slots), items);
}

double length_of(const SoftMoe& gate, const std::vector<double>& v) {
  double square = 0;
  for (const double c : v) square += c * c;
  if (gate.norm == UnitNorm::inside) return std::sqrt(square + gate.epsilon);
  return std::sqrt(square) + (gate.norm == UnitNorm::outside ? gate.epsilon : 0);
}

/// Equations (1)-(3) and the mixture in loops over the items of one sequence: y = x + u.
template <class P>
std::vector<double> soft(const SoftMoe& gate, const P& p, const std::vector<std::vector<double>>& x) {
  const auto& phi = p.branch.gate.phi;
  const Index experts = phi.extent(0), slots = phi.extent(1);
  std::vector<std::vector<double>> z, unit;
  for (const auto& item : x) {
    unit.push_back(item);
    for (double& v : unit.back()) v /= length_of(gate, item);
    z.emplace_back();
    for (Index e = 0; e < experts; ++e)
      for (Index s = 0; s < slots; ++s) {
        std::vector<double> direction;
        for (Index d = 0; d < dim; ++d) direction.push_back(phi(e, s, d));
        double dot = 0;
        for (Index d = 0; d < dim; ++d) dot += unit.back()[std::size_t(d)] * direction[std::size_t(d)];
        z.back().push_back(p.branch.gate.scale(0) * dot / length_of(gate, direction));
      }
  }
  std::vector<std::vector<double>> y = x;
  for (std::size_t j = 0; j < std::size_t(experts * slots); ++j) {
    double total = 0;
    std::vector<double> slot(dim, 0);
    for (const auto& row : z) total += std::exp(row[j]);
    for (std::size_t n = 0; n < x.size(); ++n)
      for (std::size_t d = 0; d < dim; ++d)
        slot[d] += std::exp(z[n][j]) / total * (gate.unit_dispatch ? unit[n][d] : x[n][d]);
    const auto out = naive::mlp(p.branch.expert, Index(j) / slots, slot, naive::gelu);
    for (std::size_t n = 0; n < x.size(); ++n)
      for (std::size_t d = 0; d < dim; ++d) y[n][d] += naive::softmax(z[n])[j] * out[d];
  }
  std::vector<double> all;
  for (const auto& row : y) all.insert(all.end(), row.begin(), row.end());
  return all;
}
template <class M>
std::vector<std::vector<double>> rows_of(const M& x, Index first, Index count) {
  std::vector<std::vector<double>> rows;
  for (Index n = first; n < first + count; ++n) rows.push_back(naive::row(x, n));
  return rows;
}
std::vector<double> row_of(const Tensor<double, 2, Cpu>& y, Index n) { return naive::row(y, n); }

const SoftMoe presets[] = {SoftMoe{}, SoftMoe::vmoe(), SoftMoe::reference()};

/// All items in one sequence, or sequences of three items, one of which is padding.
struct Sequences {
  bool padded = false;
  std::vector<double> valid{1, 1, 0, 1, 1, 1};
  std::vector<float> valid_float{1, 1, 0, 1, 1, 1};

  template <class T>
  Sequence<T, Cpu> some(const std::vector<T>& mask, Index first, Index count) const {
    if (!padded) return {};
    return {3, View<const T, 1, Cpu>(mask.data() + first, count)};
  }
  auto operator()(Element<double>, Index first, Index count) const { return some(valid, first, count); }
  auto operator()(Element<float>, Index first, Index count) const { return some(valid_float, first, count); }
};

}  // namespace

TEST_CASE("SoftMoe (1)-(3): outputs of each preset equal loops") {
  Cpu::Context ctx(1);
  for (const SoftMoe& gate : presets)
    for (const Index experts : {1, 3, 257}) {
      CAPTURE(experts);
      auto m = run(ctx, gate, experts, 6, experts > 3 ? 1 : 2);
      m.params.branch.gate.scale(0) = 2.5;
      m.forward();
      CHECK(difference(values(m.y), soft(gate, m.params, rows_of(m.x, 0, 6))) <= 1e-13);
      m.extra.length = 3;
      m.layer.begin(ctx, m.params, 6, m.carry);
      m.forward();
      auto expected = soft(gate, m.params, rows_of(m.x, 0, 3));
      const auto second = soft(gate, m.params, rows_of(m.x, 3, 3));
      expected.insert(expected.end(), second.begin(), second.end());
      CHECK(difference(values(m.y), expected) <= 1e-13);
    }
}

TEST_CASE("SoftMoe (2), (3): dispatch and combine weights sum to 1") {
  Cpu::Context ctx(1);
  auto m = run(ctx, {}, 3, 6);
  m.extra.length = 3;
  for (const double scale : {1.0, 1e4, 0.0}) {
    m.params.branch.gate.scale(0) = scale;
    m.layer.begin(ctx, m.params, 6, m.carry);
    m.forward();
    const auto& plan = m.saved.calls[0].plan;
    for (Index r = 0; r < 12; ++r) {
      double sum = 0;
      for (Index l = 0; l < 3; ++l) sum += plan.dispatch_weight(r, l);
      CHECK(sum == rounded(1));
      if (scale == 0) CHECK(plan.dispatch_weight(r, 1) == rounded(1.0 / 3));
    }
    for (Index n = 0; n < 6; ++n) {
      double sum = 0;
      for (Index s = 0; s < 6; ++s) sum += plan.combine_weight(n, s);
      CHECK(sum == rounded(1));
      if (scale == 0) CHECK(plan.combine_weight(n, 4) == rounded(1.0 / 6));
    }
  }
}

TEST_CASE("SoftMoe: gradients and conformance for each preset, with padding") {
  for (const SoftMoe& gate : presets) {
    for (const bool padded : {false, true}) {
      CAPTURE(padded);
      const auto report =
          check::conformance<Cpu, double>(layer(gate, 3), {.gradients = {.items = 6}}, Sequences{padded});
      CHECK_MESSAGE(report, report.str());
    }
  }
}

TEST_CASE("SoftMoe: permuting the items of a sequence permutes the outputs") {
  Cpu::Context ctx(1);
  auto m = run(ctx, {}, 3, 5), permuted = run(ctx, {}, 3, 5);
  const Index order[] = {3, 0, 4, 2, 1};
  for (Index n = 0; n < 5; ++n)
    for (Index d = 0; d < dim; ++d) permuted.x(n, d) = m.x(order[n], d);
  m.forward();
  permuted.forward();
  for (Index n = 0; n < 5; ++n) CHECK(difference(row_of(permuted.y, n), row_of(m.y, order[n])) <= 1e-13);
}

TEST_CASE("SoftMoe: a sequence has the same bits in any batch") {
  Cpu::Context ctx(1);
  auto alone = run(ctx, {}, 3, 3), among = run(ctx, {}, 3, 9);
  among.extra.length = 3;
  for (Index n = 0; n < 9; ++n)
    for (Index d = 0; d < dim; ++d) among.x(n, d) = n >= 3 && n < 6 ? alone.x(n - 3, d) : quiet_nan;
  alone.forward();
  among.forward();
  for (Index n = 0; n < 3; ++n) CHECK(same_bits(row_of(alone.y, n), row_of(among.y, n + 3)));
  CHECK(std::isnan(among.y(0, 0)));
}

TEST_CASE("SoftMoe: padding with NaN reaches nothing; its output is 0") {
  Cpu::Context ctx(1);
  for (const SoftMoe& gate : presets) {
    auto shorter = run(ctx, gate, 3, 4), padded = run(ctx, gate, 3, 6);
    const std::vector<double> valid{1, 0, 1, 1, 0, 1};
    padded.extra.valid = valid;
    Index at = 0;
    for (Index n = 0; n < 6; ++n)
      for (Index d = 0; d < dim; ++d) {
        const bool item = valid[std::size_t(n)] != 0;
        padded.x(n, d) = item ? shorter.x(at, d) : quiet_nan;
        padded.dy(n, d) = item ? shorter.dy(at, d) : 0;
        if (item && d == dim - 1) ++at;
      }
    for (auto* m : {&shorter, &padded}) {
      m->forward();
      m->backward();
    }
    at = 0;
    for (Index n = 0; n < 6; ++n) {
      if (valid[std::size_t(n)] != 0) {
        CHECK(difference(row_of(padded.y, n), row_of(shorter.y, at)) <= 1e-14);
        CHECK(difference(row_of(padded.dx, n), row_of(shorter.dx, at++)) <= 1e-13);
      } else {
        CHECK(row_of(padded.carry.p, n) == std::vector<double>(dim, 0));  // the mixture gives padding 0
        CHECK(row_of(padded.dx, n) == std::vector<double>(dim, 0));
      }
    }
    CHECK(difference(values(padded.grads), values(shorter.grads)) <= 1e-13);
  }
}

TEST_CASE("SoftMoe: sequences with only padding, or one item, work") {
  Cpu::Context ctx(1);
  auto m = run(ctx, {}, 3, 4);
  const std::vector<double> valid{0, 0, 1, 0};
  m.extra = {2, valid};
  m.forward();
  m.backward();
  for (const double v : m.outcome()) CHECK(std::isfinite(v));
  CHECK(row_of(m.carry.p, 0) == std::vector<double>(dim, 0));
  CHECK(difference(row_of(m.y, 2), soft({}, m.params, rows_of(m.x, 2, 1))) <= 1e-13);
}

TEST_CASE("SoftMoe: zero items and zero slots give no NaN") {
  Cpu::Context ctx(1);
  for (const SoftMoe& gate : presets) {
    auto m = run(ctx, gate, 3, 5);
    for (Index d = 0; d < dim; ++d) m.x(1, d) = m.params.branch.gate.phi(2, 0, d) = 0;
    m.forward();
    m.backward();
    for (const double v : m.outcome()) CHECK(std::isfinite(v));
  }
}

TEST_CASE("SoftMoe: φ starts as N(0, 1/D), σ as 1") {
  Cpu::Context ctx(1);
  const auto p = SoftMoe{.model_dim = 50, .count = 20, .slots = 20}.init<double, Cpu>(ctx, Seed{1});
  CHECK(p.scale(0) == 1);
  double mean = 0, square = 0;
  for (const double v : values(p.phi)) {
    mean += v / 20000;
    square += v * v / 20000;
  }
  CHECK(std::abs(mean) < 0.005);  // five standard deviations, as for the next check
  CHECK(square == doctest::Approx(1.0 / 50).epsilon(0.05).scale(0));
}

TEST_CASE("SoftMoe: wrong options and shapes throw") {
  Cpu::Context ctx(1);
  CHECK(with_experts(with_model_dim(SoftMoe{}, 6), 4).count == 4);
  CHECK(with_model_dim(SoftMoe{}, 6).model_dim == 6);
  CHECK(message_of([] { (void)SoftMoe{.model_dim = 5}.with_model_dim(6); }) ==
        "SoftMoe: model_dim: expected 6 (the width of the items), got 5");
  CHECK(message_of([] { (void)SoftMoe{.count = 5}.with_experts(6); }) ==
        "SoftMoe: count: expected 6 (the number of experts in the expert policy of the Mixture) or 0, got 5");
  CHECK(message_of([&] { (void)SoftMoe{.count = 2}.init<double, Cpu>(ctx, {}); }) ==
        "SoftMoe.init: model_dim: expected at least 1, got 0");
  CHECK(message_of([&] { (void)SoftMoe{.model_dim = 2}.init<double, Cpu>(ctx, {}); }) ==
        "SoftMoe.init: count: expected at least 1, got 0");
  CHECK(message_of([&] { (void)SoftMoe{.model_dim = 2, .count = 2, .slots = 0}.init<double, Cpu>(ctx, {}); }) ==
        "SoftMoe.init: slots: expected at least 1, got 0");
  auto m = run(ctx, {}, 3, 5);
  m.extra.length = 2;
  CHECK(message_of([&] { m.forward(); }) ==
        "SoftMoe.forward: sequence.length: expected a divisor of the number of items 5, got 2");
  m.extra.length = 0;
  m.params.branch.gate.phi.resize(3, 1, dim);
  CHECK(message_of([&] { m.forward(); }) == "SoftMoe: params.phi: expected [3, 2, 4], got [3, 1, 4]");
  CHECK(m.untouched());
}
