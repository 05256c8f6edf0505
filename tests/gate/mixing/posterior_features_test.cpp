#include "gatefold/gate/mixing/posterior_features.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "support/larger.hpp"
#include "support/mixing.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

constexpr Index items = 6, heads = 2, width = 3, dim = heads * width;
constexpr double precision = 0.8, alpha = 2, scale = 0.6;

/// Items u and the trace of an attention, with the features (1) of every head or of the head that each item follows.
struct Given {
  Cpu::Context ctx{1};
  bool every;
  Tensor<double, 2, Cpu> u, q, k, v, log_sum_exp, output;
  std::vector<Index> head{0, 1, 1, 0, 1, 0};
  Tensor<double, 2, Cpu> projected, norm;
  Tensor<double, 3, Cpu> square, queries, keys;
  AttentionTrace<const double, Cpu> trace;
  functor::PosteriorFeatures<double, Cpu> features;

  explicit Given(bool of_every)
      : every(of_every),
        u(uniform_tensor<double>(ctx, Seed{1}, 1, items, dim)),
        q(uniform_tensor<double>(ctx, Seed{2}, 1, items, dim)),
        k(uniform_tensor<double>(ctx, Seed{3}, 1, items, dim)),
        v(uniform_tensor<double>(ctx, Seed{4}, 1, items, dim)),
        log_sum_exp(uniform_tensor<double>(ctx, Seed{5}, 1, items, heads)),
        output(uniform_tensor<double>(ctx, Seed{6}, 1, dim, dim)),
        projected(items, dim),
        norm(heads, items),
        square(heads, items, width),
        queries(every ? heads : 1, items, functor::PosteriorFeatures<double, Cpu>::columns(width, every)),
        keys(every ? heads : 1, every ? items : items * heads, queries.extent(2)) {
    trace = {.q = q, .k = k, .v = v, .log_sum_exp = log_sum_exp, .output = output, .length = items, .scale = scale};
    for (Index n = 0; n < items; ++n)
      for (Index h = 0; h < heads; ++h) {
        for (Index c = 0; c < width; ++c) {
          projected(n, h * width + c) = 0;
          for (Index d = 0; d < dim; ++d) projected(n, h * width + c) += u(n, d) * output(h * width + c, d);
          square(h, n, c) = 0;
          for (Index d = 0; d < dim; ++d) square(h, n, c) += written(n, h, d) * output(h * width + c, d);
        }
      }
    const View<const Index, 1, Cpu> followed(head);
    features = {
        width,
        every,
        followed,
        {queries, keys, detail_::attending::following<Cpu::Context, Cpu>(ctx, followed, every ? 1 : heads, items)}};
    for (auto* t : {&queries, &keys}) fill(ctx, t->view(), 0);
  }
  /// Returns (v_h O_h)[n, d].
  double written(Index n, Index h, Index d) const {
    double m = 0;
    for (Index c = h * width; c < (h + 1) * width; ++c) m += v(n, c) * output(c, d);
    return m;
  }
  void write() {
    Cpu::for_rows(ctx, norm.size(), functor::HeadNorms<double, Cpu>{v, square, norm});
    Cpu::for_rows(
        ctx, norm.size(),
        functor::WritePosteriorFeatures<double, Cpu>{trace, features, {width, projected}, norm, precision, alpha});
  }
  /// Returns log A_h[i,j] + (⟨u_i, m_j⟩ − ‖m_j‖²/2)/σ² with m = α v_h O_h. If each item follows one head, log A_h is
  /// without its normaliser log_sum_exp.
  double log_posterior(Index h, Index i, Index j) const {
    double score = 0, inner = 0, square_of_m = 0;
    for (Index c = h * width; c < (h + 1) * width; ++c) score += q(i, c) * k(j, c);
    for (Index d = 0; d < dim; ++d) {
      const double m = alpha * written(j, h, d);
      inner += u(i, d) * m;
      square_of_m += m * m;
    }
    return scale * score + precision * (inner - square_of_m / 2) - (every ? log_sum_exp(i, h) : 0);
  }
  double product(Index h, Index i, Index j) const {
    double dot = 0;
    for (Index c = 0; c < queries.extent(2); ++c) dot += features.query(i, h)[c] * features.key(j, h)[c];
    return dot;
  }
};

}  // namespace

TEST_CASE("PosteriorFeatures (1): query times key is the log posterior") {
  for (const bool every : {true, false}) {
    Given g(every);
    g.write();
    double off = 0;
    for (Index n = 0; n < items; ++n)
      for (Index h = 0; h < heads; ++h) {
        double square = 0;
        for (Index d = 0; d < dim; ++d) square += g.written(n, h, d) * g.written(n, h, d);
        off = support::larger(off, std::abs(g.norm(h, n) - square));
        CHECK(g.features.has_query(n, h) == (every || g.head[static_cast<std::size_t>(n)] == h));
        CHECK(g.features.has_key(n, h));  // some item of the sequence follows each head
        if (!g.features.has_query(n, h)) continue;
        for (Index j = 0; j < items; ++j)
          off = support::larger(off, std::abs(g.product(h, n, j) - g.log_posterior(h, n, j)));
      }
    CHECK(off <= 1e-14);
  }
}

TEST_CASE("PosteriorFeaturesBackward: gradient (1) equals central differences") {
  // L = Σ_{h,i,j} w_hij log_posterior, so that dquery = Σ_j w key, dkey = Σ_i w query.
  for (const bool every : {true, false}) {
    Given g(every), d(every);
    g.write();
    const auto w = uniform_tensor<double>(g.ctx, Seed{7}, 1, heads, items, items);
    const auto follows = [&](Index h, Index i) { return g.features.has_query(i, h); };
    const auto loss = [&] {
      double sum = 0;
      for (Index h = 0; h < heads; ++h)
        for (Index i = 0; i < items; ++i)
          for (Index j = 0; follows(h, i) && j < items; ++j) sum += w(h, i, j) * g.log_posterior(h, i, j);
      return sum;
    };
    for (Index h = 0; h < heads; ++h)
      for (Index i = 0; i < items; ++i)
        for (Index j = 0; follows(h, i) && j < items; ++j)
          for (Index c = 0; c < g.queries.extent(2); ++c) {
            d.features.query(i, h)[c] += w(h, i, j) * g.features.key(j, h)[c];
            d.features.key(j, h)[c] += w(h, i, j) * g.features.query(i, h)[c];
          }
    Tensor<double, 2, Cpu> dq(items, dim), dk(items, dim), dv(items, dim), dlog(items, heads), du(items, dim);
    for (auto* t : {&dq, &dk, &dv, &dlog, &du}) fill(g.ctx, t->view(), 0);
    Tensor<double, 3, Cpu> weighted(heads, items, width);
    const AttentionTrace<double, Cpu> da{.q = dq, .k = dk, .v = dv, .log_sum_exp = dlog, .output = {}};
    Cpu::for_rows(g.ctx, heads * items,
                  functor::PosteriorFeaturesBackward<double, Cpu>{
                      g.trace, da, d.features, g.square, precision, alpha, {width, du}, weighted});
    const auto slope = [&](double& of) {
      const double at = of, step = 1e-3;
      of = at + step;
      const double above = loss();
      of = at - step;
      const double below = loss();
      of = at;
      return (above - below) / (2 * step);
    };
    double off = 0;
    for (Index n = 0; n < items; ++n) {
      for (Index c = 0; c < dim; ++c) {
        off = support::larger(off, std::abs(slope(g.q(n, c)) - dq(n, c)));
        off = support::larger(off, std::abs(slope(g.k(n, c)) - dk(n, c)));
        off = support::larger(off, std::abs(slope(g.v(n, c)) - dv(n, c)));
        double through = 0;  // gradient of u: d(u Oᵀ) O; the variable du is d(u Oᵀ)
        for (Index row = 0; row < dim; ++row) through += du(n, row) * g.output(row, c);
        off = support::larger(off, std::abs(slope(g.u(n, c)) - through));
      }
      for (Index h = 0; every && h < heads; ++h)
        off = support::larger(off, std::abs(slope(g.log_sum_exp(n, h)) - dlog(n, h)));
      for (Index h = 0; h < heads; ++h)  // v_h times twice the adjoint of ‖v_h O_h‖²
        for (Index c = 0; c < width; ++c) {
          const double of_norm = -0.5 * precision * alpha * alpha * d.features.key(n, h)[2 * width];
          off = support::larger(off, std::abs(weighted(h, n, c) - 2 * of_norm * g.v(n, h * width + c)));
        }
    }
    CHECK(off <= 1e-10);
  }
}

namespace {

constexpr Index all_items = 12, all_heads = 3, head_width = 2, all_dim = all_heads * head_width;

/// A trace of random queries and keys, with the log-sum-exps of their scores.
struct GivenTrace {
  Cpu::Context ctx{2};
  Tensor<double, 2, Cpu> q, k, log_sum_exp, entropy;
  std::vector<double> valid;
  AttentionTrace<const double, Cpu> trace;

  GivenTrace(Index length, bool causal, std::vector<double> mask = {})
      : q(uniform_tensor<double>(ctx, Seed{1}, 3, all_items, all_dim)),
        k(uniform_tensor<double>(ctx, Seed{2}, 3, all_items, all_dim)),
        log_sum_exp(all_items, all_heads),
        entropy(all_items, all_heads),
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
    for (Index h = 0; h < all_heads; ++h)
      for (Index i = 0; i < all_items; ++i) log_sum_exp(i, h) = std::log(weights(h, i).second);
  }
  /// Returns exp(scale ⟨q, k⟩) over the sequence of i, and its sum.
  std::pair<std::vector<double>, double> weights(Index h, Index i) const {
    std::vector<double> w;
    double total = 0;
    for (Index j = i / trace.length * trace.length; j < (i / trace.length + 1) * trace.length; ++j) {
      double dot = 0;
      for (Index c = h * head_width; c < (h + 1) * head_width; ++c) dot += q(i, c) * k(j, c);
      const bool hidden = (trace.causal && j > i) || (!valid.empty() && valid[static_cast<std::size_t>(j)] == 0);
      w.push_back(hidden ? 0 : std::exp(trace.scale * dot));
      total += w.back();
    }
    return {w, total};
  }
  std::vector<Index> followed(FollowedHead choice) {
    Tensor<Index, 1, Cpu> head(all_items);
    fill(ctx, head.view(), 99);
    detail_::mixing::follow_head<double, Cpu>(ctx, choice, trace, View<const double, 1, Cpu>(valid), head);
    return {head.data(), head.data() + all_items};
  }
};

}  // namespace

TEST_CASE("attention_entropies: equals the entropy of each row of A") {
  for (const bool causal : {true, false})
    for (const bool padded : {true, false}) {
      GivenTrace g(6, causal, padded ? std::vector<double>{1, 1, 0, 1, 1, 1, 1, 1, 1, 1, 1, 0} : std::vector<double>{});
      const auto entropy = detail_::mixing::attention_entropies<double, Cpu>(g.ctx, g.trace);
      for (Index h = 0; h < all_heads; ++h)
        for (Index i = 0; i < all_items; ++i) {
          auto [p, total] = g.weights(h, i);
          for (double& w : p) w /= total;
          CHECK(entropy(i, h) == doctest::Approx(naive::entropy(p)).epsilon(1e-13));
        }
      if (causal) CHECK(entropy(0, 1) == 0);
    }
}

TEST_CASE("follow_head: picks the first head of lowest entropy sum") {
  // In sequence 0 (items 0 to 5), head 1 first has the lowest sum so far. Then head 0 ties with head 1 and wins, then
  // head 2 wins, and at last head 0. In sequence 1 all heads tie throughout.
  const double rows[all_items][all_heads] = {{2, 1, 3}, {1, 2, 2}, {9, 9, 0}, {3, 3, 0}, {2, 3, 0}, {0, 9, 5},
                                             {1, 1, 1}, {2, 2, 2}, {0, 0, 0}, {4, 4, 4}, {1, 1, 1}, {3, 3, 3}};
  for (const bool causal : {true, false}) {
    GivenTrace g(6, causal, {1, 1, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1});
    for (Index i = 0; i < all_items; ++i)
      for (Index h = 0; h < all_heads; ++h) g.entropy(i, h) = rows[i][h];
    g.trace.entropy = g.entropy;
    // Item 2 is padding and keeps the choice before it.
    // From item 1 on, the sums are 3 3 5, 3 3 5, 6 6 5, 8 9 5, 8 18 10.
    const std::vector<Index> so_far{1, 0, 0, 2, 2, 0, 0, 0, 0, 0, 0, 0}, whole(all_items, 0);
    CHECK(g.followed(FollowedHead::lowest_entropy) == (causal ? so_far : whole));
    CHECK(g.followed(FollowedHead::lowest_entropy_of_sequence) == whole);
    CHECK(g.followed(FollowedHead::every) == whole);
    CHECK(detail_::mixing::several_heads(FollowedHead::lowest_entropy, g.trace) == causal);
    CHECK_FALSE(detail_::mixing::several_heads(FollowedHead::lowest_entropy_of_sequence, g.trace));
    CHECK_FALSE(detail_::mixing::several_heads(FollowedHead::every, g.trace));
  }
}

TEST_CASE("follow_head: computes the entropies if the trace has no entropies") {
  GivenTrace g(4, true);
  const std::vector<Index> own = g.followed(FollowedHead::lowest_entropy);
  for (Index i = 0; i < all_items; ++i)
    for (Index h = 0; h < all_heads; ++h) {
      auto [p, total] = g.weights(h, i);
      for (double& w : p) w /= total;
      g.entropy(i, h) = naive::entropy(p);
    }
  g.trace.entropy = g.entropy;
  CHECK(own == g.followed(FollowedHead::lowest_entropy));
  CHECK(own != std::vector<Index>(all_items, 0));
}
