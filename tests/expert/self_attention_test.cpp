#include "gatefold/expert/self_attention.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "support/attention.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

const std::vector<Index> offsets{0, 2, 2, 3};
const Groups<Cpu> items{offsets, {}, 4};  // one spare slot
constexpr Index length = 5, dim = 3, used = 3 * length;

}  // namespace

TEST_CASE("SelfAttention (1): probabilities inside each item, all positions or up to one's own; again from λ") {
  Cpu::Context ctx(2);
  auto q = uniform_tensor<double>(ctx, Seed{1}, 30, 4 * length, dim);
  const auto k = uniform_tensor<double>(ctx, Seed{2}, 30, 4 * length, dim);
  q(0, 0) = 1e4;  // scores far beyond the range of exp
  for (const bool causal : {false, true}) {
    auto mark = ctx.mark();
    const SelfAttention<double, Cpu> attention{ctx, items, length, 0.5, causal};
    CHECK(attention.rows() == 4 * length);
    auto p = constant_tensor<double>(ctx, 777, 4 * length, length);
    auto again = constant_tensor<double>(ctx, 777, 4 * length, length);
    auto log_sum_exp = constant_tensor<double>(ctx, 777, 4 * length, 2);
    attention.probabilities(ctx, q, k, p, log_sum_exp, 1);
    attention.again(ctx, q, k, log_sum_exp, 1, again);
    CHECK(same_bits(values(p), values(again)));
    std::vector<double> expected;
    for (Index t = 0; t < used; ++t) {
      std::vector<double> score(length, 0.0);
      for (Index j = 0; j < length; ++j)
        for (Index d = 0; d < dim; ++d) score[std::size_t(j)] += 0.5 * q(t, d) * k(t / length * length + j, d);
      const auto row = naive::attention_row(score, causal ? t % length + 1 : length);
      expected.insert(expected.end(), row.begin(), row.end());
      CHECK(log_sum_exp(t, 0) == 777);
    }
    auto got = values(p);
    for (std::size_t i = expected.size(); i < got.size(); ++i) CHECK(got[i] == 777);
    CHECK(log_sum_exp(used, 1) == 777);
    got.resize(expected.size());
    CHECK(difference(got, expected) <= 1e-11);
  }
}

TEST_CASE("SelfAttention (1): a float's probabilities are right within ε·max |score|") {
  Cpu::Context ctx(1);
  auto mark = ctx.mark();
  const SelfAttention<float, Cpu> attention{ctx, items, length, 1, false};
  for (const double size : {1.0, 25.0}) {
    const auto q = uniform_tensor<float>(ctx, Seed{1}, size, 4 * length, dim);
    const auto k = uniform_tensor<float>(ctx, Seed{2}, size, 4 * length, dim);
    Tensor<float, 2, Cpu> p(4 * length, length), again(4 * length, length), log_sum_exp(4 * length, 1);
    attention.probabilities(ctx, q, k, p, log_sum_exp, 0);
    attention.again(ctx, q, k, log_sum_exp, 0, again);
    CHECK(same_bits(values(p), values(again)));
    const double bound = dim * size * size;  // of a score
    double worst = 0;
    for (Index t = 0; t < used; ++t) {
      std::vector<double> score(length, 0.0);
      for (Index j = 0; j < length; ++j)
        for (Index d = 0; d < dim; ++d)
          score[std::size_t(j)] += double(q(t, d)) * double(k(t / length * length + j, d));
      const auto row = naive::attention_row(score, length);
      for (Index j = 0; j < length; ++j)
        worst = std::max(worst, std::abs(double(p(t, j)) - row[std::size_t(j)]));
    }
    CHECK(worst <= 1.2e-7 * (2 + bound));
  }
}

TEST_CASE("SelfAttention: the softmax's adjoint, with a row of its own or one that a slot shares") {
  Cpu::Context ctx(1);
  auto mark = ctx.mark();
  const SelfAttention<double, Cpu> attention{ctx, items, length, 0.5, false};
  const auto q = uniform_tensor<double>(ctx, Seed{1}, 1, 4 * length, dim);
  const auto k = uniform_tensor<double>(ctx, Seed{2}, 1, 4 * length, dim);
  Tensor<double, 2, Cpu> p(4 * length, length), log_sum_exp(4 * length, 1);
  for (const Index rows : {4 * length, Index(4)}) {
    attention.probabilities(ctx, q, k, p, log_sum_exp, 0);
    const auto dp = uniform_tensor<double>(ctx, Seed{3}, 1, rows, length);
    std::vector<double> expected;
    for (Index t = 0; t < used; ++t)
      for (Index j = 0; j < length; ++j) {
        double sum = 0;  // Σ_i dp_i ∂p_i/∂s_j
        for (Index i = 0; i < length; ++i)
          sum += dp(rows == 4 ? t / length : t, i) * p(t, i) * ((i == j) - p(t, j));
        expected.push_back(0.5 * sum);
      }
    attention.probabilities_backward(ctx, dp, p);
    auto got = values(p);
    got.resize(expected.size());
    CHECK(difference(got, expected) <= 1e-14);
  }
}

TEST_CASE("SelfAttention: products of a slot's matrix and its positions") {
  Cpu::Context ctx(1);
  auto mark = ctx.mark();
  const SelfAttention<double, Cpu> attention{ctx, items, length, 1, false};
  const auto m = uniform_tensor<double>(ctx, Seed{1}, 1, 4 * length, length);
  const auto x = uniform_tensor<double>(ctx, Seed{2}, 1, 4 * length, dim);
  auto y = constant_tensor<double>(ctx, 777, 4 * length, dim), z = constant_tensor<double>(ctx, 1, 4 * length, dim);
  attention.apply(ctx, m, x, y);
  attention.add_transposed(ctx, m, x, z);
  double worst = 0;
  for (Index t = 0; t < 4 * length; ++t)
    for (Index d = 0; d < dim; ++d) {
      const Index first = t / length * length;
      double straight = 0, transposed = 1;
      for (Index j = 0; j < length; ++j) {
        straight += m(t, j) * x(first + j, d);
        transposed += m(first + j, t - first) * x(first + j, d);
      }
      worst = std::max({worst, std::abs(y(t, d) - (t < used ? straight : 777)),
                        std::abs(z(t, d) - (t < used ? transposed : 1))});
    }
  CHECK(worst <= 1e-14);
}
