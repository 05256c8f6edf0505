#include "gatefold/gate/mixing/followed_head.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <utility>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "support/mixing.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

constexpr Index items = 12, heads = 3, width = 2, dim = heads * width;

/// A trace of random queries and keys, with the log-sum-exps of their scores.
struct Given {
  Cpu::Context ctx{2};
  Tensor<double, 2, Cpu> q, k, log_sum_exp, entropy;
  std::vector<double> valid;
  AttentionTrace<const double, Cpu> trace;

  Given(Index length, bool causal, std::vector<double> mask = {})
      : q(uniform_tensor<double>(ctx, Seed{1}, 3, items, dim)),
        k(uniform_tensor<double>(ctx, Seed{2}, 3, items, dim)),
        log_sum_exp(items, heads),
        entropy(items, heads),
        valid(std::move(mask)) {
    trace = {.q = q,
             .k = k,
             .v = k,
             .log_sum_exp = log_sum_exp,
             .output = {},
             .length = length,
             .scale = 0.7,
             .causal = causal,
             .valid = valid,
             .entropy = {}};
    for (Index h = 0; h < heads; ++h)
      for (Index i = 0; i < items; ++i) log_sum_exp(i, h) = std::log(weights(h, i).second);
  }
  /// Returns exp(scale ⟨q, k⟩) over the sequence of i, and its sum.
  std::pair<std::vector<double>, double> weights(Index h, Index i) const {
    std::vector<double> w;
    double total = 0;
    for (Index j = i / trace.length * trace.length; j < (i / trace.length + 1) * trace.length; ++j) {
      double dot = 0;
      for (Index c = h * width; c < (h + 1) * width; ++c) dot += q(i, c) * k(j, c);
      const bool hidden = (trace.causal && j > i) || (!valid.empty() && valid[static_cast<std::size_t>(j)] == 0);
      w.push_back(hidden ? 0 : std::exp(trace.scale * dot));
      total += w.back();
    }
    return {w, total};
  }
  std::vector<Index> followed(FollowedHead choice) {
    Tensor<Index, 1, Cpu> head(items);
    fill(ctx, head.view(), 99);
    detail_::mixing::follow_head<double, Cpu>(ctx, choice, trace, View<const double, 1, Cpu>(valid), head);
    return {head.data(), head.data() + items};
  }
};

}  // namespace

TEST_CASE("attention_entropies: equals the entropy of each row of A") {
  for (const bool causal : {true, false})
    for (const bool padded : {true, false}) {
      Given g(6, causal, padded ? std::vector<double>{1, 1, 0, 1, 1, 1, 1, 1, 1, 1, 1, 0} : std::vector<double>{});
      const auto entropy = detail_::mixing::attention_entropies<double, Cpu>(g.ctx, g.trace);
      for (Index h = 0; h < heads; ++h)
        for (Index i = 0; i < items; ++i) {
          auto [p, total] = g.weights(h, i);
          for (double& w : p) w /= total;
          CHECK(entropy(i, h) == doctest::Approx(naive::entropy(p)).epsilon(1e-13));
        }
      if (causal) CHECK(entropy(0, 1) == 0);
    }
}

TEST_CASE("follow_head: picks the lowest entropy sum; ties: lower index") {
  // In sequence 0 (items 0 to 5) the lowest sum so far is first that of head 1, then 0 ties with 1 and wins, then 2
  // wins. In sequence 1 all heads tie throughout.
  const double rows[items][heads] = {{2, 1, 3}, {1, 2, 2}, {9, 9, 0}, {3, 3, 0}, {2, 3, 0}, {0, 9, 5},
                                     {1, 1, 1}, {2, 2, 2}, {0, 0, 0}, {4, 4, 4}, {1, 1, 1}, {3, 3, 3}};
  for (const bool causal : {true, false}) {
    Given g(6, causal, {1, 1, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1});
    for (Index i = 0; i < items; ++i)
      for (Index h = 0; h < heads; ++h) g.entropy(i, h) = rows[i][h];
    g.trace.entropy = g.entropy;
    // Item 2 is padding and keeps the choice before it: the sums are 3 3 5, 3 3 5, 6 6 5, 8 9 5, 8 18 10.
    const std::vector<Index> so_far{1, 0, 0, 2, 2, 0, 0, 0, 0, 0, 0, 0}, whole(items, 0);
    CHECK(g.followed(FollowedHead::lowest_entropy) == (causal ? so_far : whole));
    CHECK(g.followed(FollowedHead::lowest_entropy_of_sequence) == whole);
    CHECK(g.followed(FollowedHead::every) == whole);
    CHECK(detail_::mixing::several_heads(FollowedHead::lowest_entropy, g.trace) == causal);
    CHECK_FALSE(detail_::mixing::several_heads(FollowedHead::lowest_entropy_of_sequence, g.trace));
    CHECK_FALSE(detail_::mixing::several_heads(FollowedHead::every, g.trace));
  }
}

TEST_CASE("follow_head: computes the entropies if the trace has no entropies") {
  Given g(4, true);
  const std::vector<Index> own = g.followed(FollowedHead::lowest_entropy);
  for (Index i = 0; i < items; ++i)
    for (Index h = 0; h < heads; ++h) {
      auto [p, total] = g.weights(h, i);
      for (double& w : p) w /= total;
      g.entropy(i, h) = naive::entropy(p);
    }
  g.trace.entropy = g.entropy;
  CHECK(own == g.followed(FollowedHead::lowest_entropy));
  CHECK(own != std::vector<Index>(items, 0));
}
