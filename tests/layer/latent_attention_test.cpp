#include "gatefold/layer/latent_attention.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "gatefold/check/conformance.hpp"
#include "support/naive_moe.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

using Row = std::vector<double>;
using Rows = std::vector<Row>;

LatentAttention attention(Index query_rank, bool bias) {
  return {.model_dim = 6,
          .heads = 3,
          .query_rank = query_rank,
          .latent_dim = 4,
          .plain_dim = 3,
          .rotary_dim = 4,
          .value_dim = 5,
          .rotary = {.rope_theta = 20,
                     .rope_type = RopeType::yarn,
                     .factor = 4,
                     .original_max_position_embeddings = 16,
                     .mscale = 0.7,
                     .mscale_all_dim = 0.5,
                     .interleaved = true},
          .bias = bias};
}

Row project(const Row& x, const Linear::Params<double, Cpu>& w) {
  return naive::affine(
      x, w.weight.extent(2), [&](Index d, Index j) { return w.weight(0, d, j); },
      [&](Index j) { return w.bias.size() > 0 ? w.bias(0, j) : 0.0; });
}
Row normed(Row x, const RmsNorm::Params<double, Cpu>& p, double epsilon) {
  double squares = 0;
  for (const double v : x) squares += v * v;
  for (std::size_t j = 0; j < x.size(); ++j)
    x[j] *= p.gain(0, Index(j)) / std::sqrt(squares / double(x.size()) + epsilon);
  return x;
}
/// Rotates rotary_dim values from `first` on, as pairs of neighbours.
void rotate(Row& x, std::size_t first, const LatentAttention& a, std::size_t position) {
  for (Index i = 0; i < a.rotary_dim / 2; ++i) {
    const double angle = double(position) * a.rotary.frequency(i, a.rotary_dim), size = a.rotary.amplitude();
    double &low = x[first + std::size_t(2 * i)], &high = x[first + std::size_t(2 * i) + 1];
    const double before = low;
    low = size * (before * std::cos(angle) - high * std::sin(angle));
    high = size * (high * std::cos(angle) + before * std::sin(angle));
  }
}

/// Equations (1) and (2) of one sequence, in loops.
template <class P>
Rows attend(const LatentAttention& a, const P& p, const Rows& x) {
  const auto plain = std::size_t(a.plain_dim), width = std::size_t(a.plain_dim + a.rotary_dim),
             value = std::size_t(a.value_dim), heads = std::size_t(a.heads);
  const double m = 0.1 * a.rotary.mscale_all_dim * std::log(a.rotary.factor) + 1;
  Rows q, k, v, u;
  for (std::size_t t = 0; t < x.size(); ++t) {
    q.push_back(
        project(a.query_rank > 0 ? normed(project(x[t], p.query_down), p.query_norm, a.epsilon) : x[t], p.query));
    const Row both = project(x[t], p.latent);
    Row shared(both.begin() + a.latent_dim, both.end());
    rotate(shared, 0, a, t);
    const Row kv =
        project(normed(Row(both.begin(), both.begin() + a.latent_dim), p.latent_norm, a.epsilon), p.key_value);
    k.emplace_back();
    v.emplace_back();
    for (std::size_t h = 0; h < heads; ++h) {
      const auto of = kv.begin() + std::ptrdiff_t(h * (plain + value));
      k[t].insert(k[t].end(), of, of + a.plain_dim);
      k[t].insert(k[t].end(), shared.begin(), shared.end());
      v[t].insert(v[t].end(), of + a.plain_dim, of + a.plain_dim + a.value_dim);
      rotate(q[t], h * width + plain, a, t);
    }
    Row context(heads * value, 0);
    for (std::size_t h = 0; h < heads; ++h) {
      Row weights;
      double total = 0;
      for (std::size_t j = 0; j <= t; ++j) {
        double score = 0;
        for (std::size_t d = 0; d < width; ++d) score += q[t][h * width + d] * k[j][h * width + d];
        weights.push_back(std::exp(score * m * m / std::sqrt(double(width))));
        total += weights.back();
      }
      for (std::size_t j = 0; j <= t; ++j)
        for (std::size_t d = 0; d < value; ++d) context[h * value + d] += weights[j] / total * v[j][h * value + d];
    }
    u.push_back(project(context, p.output));
  }
  return u;
}

}  // namespace

TEST_CASE("LatentAttention (1), (2): equals loops over two sequences") {
  Cpu::Context ctx(2);
  constexpr Index length = 6;
  for (const Index query_rank : {0, 5})
    for (const bool bias : {false, true}) {
      const auto a = attention(query_rank, bias);
      auto p = pass<double>(ctx, a, 2 * length);
      auto& params = p.params.branch;
      for (auto* t : {&params.query_norm.gain, &params.latent_norm.gain, &params.latent.bias, &params.output.bias}) {
        auto view = t->view();
        fill_uniform(ctx, Seed{7}, 0.3, 1.5, view);
      }
      p.extra.length = length;
      p.forward();
      std::vector<double> expected;
      for (Index g = 0; g < 2; ++g) {
        Rows x;
        for (Index t = 0; t < length; ++t) x.push_back(naive::row(p.x, g * length + t));
        for (const Row& row : attend(a, params, x)) expected.insert(expected.end(), row.begin(), row.end());
      }
      CHECK(difference(values(p.y), expected) <= 1e-13);
      const auto forward = values(p.y);
      p.infer();
      CHECK(same_bits(values(p.y), forward));
    }
}

TEST_CASE("LatentAttention: gradients equal finite differences") {
  Cpu::Context ctx(1);
  for (const Index query_rank : {0, 5})
    for (const bool bias : {false, true}) {
      const auto report = check::gradients(ctx, attention(query_rank, bias), {.items = 10}, {.length = 5});
      CHECK_MESSAGE(report, report.str());
    }
}

TEST_CASE_TEMPLATE("LatentAttention: any division into segments gives the same bits", T, float, double) {
  constexpr Index items = 280;
  for (const Index wider :
       {-1, 0, 1, 3}) {  // -1: a latent cache; else expanded, values of width 5 (0) or n - 1 more than keys (n > 0)
    auto a = attention(5, false);
    a.expanded_cache = wider >= 0;
    if (wider > 0) a.value_dim = a.plain_dim + a.rotary_dim + wider - 1;
    CAPTURE(wider);
    for (const int threads : {1, 2}) {
      Cpu::Context ctx(threads);
      auto whole = pass<T>(ctx, a, items);
      whole.infer();
      for (const Index step : {1, 9, 279}) {
        KvCache<T, Cpu> cache(ctx, a.cache(1, 1, items));
        Index different = 0;
        for (Index first = 0; first < items; first += step) {
          const Index count = std::min(step, items - first);
          auto part = pass<T>(ctx, a, count);
          copy(ctx, whole.x.view().rows(first, count), part.x.view());
          part.extra = {.length = count, .cache = cache.of(count)};
          part.infer();
          cache.advance();
          for (Index t = 0; t < count; ++t)
            different += naive::row(part.y, t) != naive::row(whole.y, first + t) ? 1 : 0;
        }
        CAPTURE(step);
        CHECK(different == 0);
      }
    }
  }
}

TEST_CASE("LatentAttention: expanded and latent caches agree on padded sequences") {
  auto a = attention(5, false);
  Cpu::Context ctx(1);
  constexpr Index length = 6, step = 2;
  auto latent = pass<double>(ctx, a, 2 * step);
  a.expanded_cache = true;
  auto expanded = pass<double>(ctx, a, 2 * step);
  KvCache<double, Cpu> short_rows(ctx, attention(5, false).cache(1, 2, length)), long_rows(ctx, a.cache(1, 2, length));
  Tensor<double, 1, Cpu> valid(2 * step);
  for (Index first = 0; first < length; first += step) {
    for (Index n = 0; n < valid.size(); ++n) valid(n) = first == 0 && n < 1 ? 0 : 1;  // the first item is padding
    latent.x = uniform_tensor<double>(ctx, Seed{std::uint64_t(first)}, 1, 2 * step, a.model_dim);
    copy(ctx, std::as_const(latent.x).view(), expanded.x.view());
    latent.extra = {.length = step, .valid = valid, .cache = short_rows.of(step)};
    expanded.extra = {.length = step, .valid = valid, .cache = long_rows.of(step)};
    latent.infer();
    expanded.infer();
    short_rows.advance();
    long_rows.advance();
    for (Index n = 0; n < 2 * step; ++n) CHECK(naive::row(latent.y, n) == naive::row(expanded.y, n));
  }
}

TEST_CASE("LatentAttention: wrong options and inputs are refused") {
  Cpu::Context ctx(1);
  auto a = attention(0, false);
  a.rotary_dim = 3;
  CHECK(message_of([&] { init_params<double, Cpu>(a, ctx, Seed{1}); }) ==
        "LatentAttention: rotary.partial_rotary_factor: expected an even number of rotated values of a head of 3, got "
        "3");
  a.latent_dim = 0;
  CHECK(message_of([&] { init_params<double, Cpu>(a, ctx, Seed{1}); }) ==
        "LatentAttention: latent_dim: expected at least 1, got 0");
  auto p = pass<double>(ctx, attention(0, false), 4);
  KvCache<double, Cpu> cache(ctx, {.width = 9, .longest = 9});
  p.extra.cache = cache.of(4);
  CHECK(message_of([&] { p.infer(); }) ==
        "LatentAttention: cache: expected rows of 8 values (latent vector and rotated key), got rows of 9");
}
