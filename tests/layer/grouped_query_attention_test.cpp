#include "gatefold/layer/grouped_query_attention.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <utility>
#include <vector>

#include "gatefold/check/conformance.hpp"
#include "support/naive_moe.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

using Rows = std::vector<std::vector<double>>;

/// Options for the keys that an item sees: all (0), a window or a chunk. If floor_scale > 0, queries have a
/// temperature.
struct Reach {
  Index window = 0, chunk = 0, floor_scale = 0;
};
GroupedQueryAttention attention(QueryKeyNorm norm, bool sinks, const Reach& reach, Index kv_heads) {
  return {.model_dim = 6,
          .heads = 4,
          .kv_heads = kv_heads,
          .head_dim = 4,
          .rotary = {.rope_theta = 20, .partial_rotary_factor = 0.5},
          .bias = true,
          .output_bias = true,
          .norm = norm,
          .window = reach.window,
          .sinks = sinks,
          .chunk = reach.chunk,
          .temperature = {.floor_scale = reach.floor_scale, .attn_scale = 0.7}};
}
/// Calls f(attention) for combinations in which every two values of different options meet.
template <class F>
void for_pairs(const F& f) {
  const QueryKeyNorm norms[] = {QueryKeyNorm::none, QueryKeyNorm::head, QueryKeyNorm::all, QueryKeyNorm::rotated_head};
  const Reach reaches[] = {{}, {.window = 3}, {.chunk = 3}, {.floor_scale = 2}};
  const Index kv_heads[] = {0, 2, 1};
  for (int i = 0; i < 4; ++i)
    for (int j = 0; j < 4; ++j) {
      CAPTURE(i);
      CAPTURE(j);
      f(attention(norms[i], ((i / 2 + j) % 2) == 1, reaches[j], kv_heads[(i + j) % 3]));
    }
}
/// Gives biases, gains and sinks random values, so that they matter.
template <class P>
void randomise(Cpu::Context& ctx, P& p) {
  std::uint64_t seed = 100;
  for (auto* t :
       {&p.query.bias, &p.key.bias, &p.value.bias, &p.output.bias, &p.query_norm.gain, &p.key_norm.gain, &p.sink}) {
    auto view = t->view();
    fill_uniform(ctx, Seed{seed++}, 0.2, 1.5, view);
  }
}

/// Equations (1) to (3) of one sequence, in loops.
template <class P>
Rows attend(const GroupedQueryAttention& a, const P& p, const Rows& x) {
  const Index width = a.width(), groups = a.kv_dim() / width;
  const auto project = [&](const Rows& rows, const Linear::Params<double, Cpu>& w) {
    Rows y;
    for (const auto& row : rows)
      y.push_back(naive::affine(
          row, w.weight.extent(2), [&](Index d, Index j) { return w.weight(0, d, j); },
          [&](Index j) { return w.bias.size() > 0 ? w.bias(0, j) : 0.0; }));
    return y;
  };
  const auto placed = [&](Rows rows, const Tensor<double, 2, Cpu>& gain) {
    const Index rotated = a.rotary.rotated(width), pairs = rotated / 2;
    const auto divide_by_mean = [&](std::vector<double>& row, Index together, const auto& gain_of) {
      for (std::size_t begin = 0; together > 0 && begin < row.size(); begin += std::size_t(together)) {
        double squares = 0;
        for (std::size_t j = begin; j < begin + std::size_t(together); ++j) squares += row[j] * row[j];
        const double scale = 1 / std::sqrt(squares / double(together) + a.epsilon);
        for (std::size_t j = begin; j < begin + std::size_t(together); ++j) row[j] *= scale * gain_of(Index(j - begin));
      }
    };
    for (std::size_t t = 0; t < rows.size(); ++t) {
      auto& row = rows[t];
      divide_by_mean(row, gain.extent(1), [&](Index j) { return gain(0, j); });
      for (std::size_t head = 0; head < row.size(); head += std::size_t(width))
        for (Index i = 0; i < pairs; ++i) {
          const double angle = double(t) * std::pow(a.rotary.rope_theta, -double(2 * i) / double(rotated));
          double &low = row[head + std::size_t(i)], &high = row[head + std::size_t(pairs + i)];
          const double before = low;
          low = before * std::cos(angle) - high * std::sin(angle);
          high = high * std::cos(angle) + before * std::sin(angle);
        }
      if (a.norm == QueryKeyNorm::rotated_head) divide_by_mean(row, width, [](Index) { return 1.0; });
    }
    return rows;
  };
  Rows q = placed(project(x, p.query), p.query_norm.gain);
  if (const Index floor_scale = a.temperature.floor_scale; floor_scale > 0)
    for (std::size_t t = 0; t < q.size(); ++t)
      for (double& v : q[t])
        v *= 1 + a.temperature.attn_scale * std::log(1 + std::floor(double(t + 1) / double(floor_scale)));
  const Rows k = placed(project(x, p.key), p.key_norm.gain), v = project(x, p.value);
  Rows context(x.size(), std::vector<double>(std::size_t(a.heads * width), 0));
  for (std::size_t i = 0; i < x.size(); ++i)
    for (Index h = 0; h < a.heads; ++h) {
      const auto of = std::size_t(h * width), shared = std::size_t(h / (a.heads / groups) * width);
      double total = a.sinks ? std::exp(p.sink(0, h)) : 0;
      std::vector<std::pair<std::size_t, double>> seen;
      for (std::size_t j = 0; j <= i; ++j) {
        if (a.window > 0 && Index(i - j) >= a.window) continue;
        if (a.chunk > 0 && Index(i) / a.chunk != Index(j) / a.chunk) continue;
        double score = 0;
        for (std::size_t d = 0; d < std::size_t(width); ++d) score += q[i][of + d] * k[j][shared + d];
        seen.push_back({j, std::exp(score / std::sqrt(double(width)))});
        total += seen.back().second;
      }
      for (const auto& [j, weight] : seen)
        for (std::size_t d = 0; d < std::size_t(width); ++d) context[i][of + d] += weight / total * v[j][shared + d];
    }
  return project(context, p.output);
}
std::vector<double> flat(const Rows& rows) {
  std::vector<double> all;
  for (const auto& row : rows) all.insert(all.end(), row.begin(), row.end());
  return all;
}

}  // namespace

TEST_CASE("GroupedQueryAttention (1) to (3): equals loops over two sequences") {
  Cpu::Context ctx(2);
  constexpr Index length = 7;
  for_pairs([&](const GroupedQueryAttention& a) {
    auto p = pass<double>(ctx, a, 2 * length);
    randomise(ctx, p.params.branch);
    p.extra.length = length;
    p.forward();
    std::vector<double> expected;
    for (Index g = 0; g < 2; ++g) {
      Rows x;
      for (Index t = 0; t < length; ++t) x.push_back(naive::row(p.x, g * length + t));
      const auto rows = flat(attend(a, p.params.branch, x));
      expected.insert(expected.end(), rows.begin(), rows.end());
    }
    CHECK(difference(values(p.y), expected) <= 1e-13);
    const auto forward = values(p.y);
    p.infer();
    CHECK(same_bits(values(p.y), forward));
  });
}

TEST_CASE("GroupedQueryAttention: gradients equal finite differences") {
  Cpu::Context ctx(1);
  for_pairs([&](const GroupedQueryAttention& a) {
    const auto report = check::gradients(ctx, a, {.items = 10}, {.length = 5});
    CHECK_MESSAGE(report, report.str());
  });
}

TEST_CASE("GroupedQueryAttention: padding has no effect and no gradient") {
  Cpu::Context ctx(1);
  constexpr Index length = 5;
  const auto a = attention(QueryKeyNorm::head, true, {}, 2);
  auto padded = pass<double>(ctx, a, length), alone = pass<double>(ctx, a, length - 2);
  Tensor<double, 1, Cpu> valid(length);
  for (Index t = 0; t < length; ++t) valid(t) = t < length - 2 ? 1 : 0;
  copy(ctx, padded.x.view().rows(0, length - 2), alone.x.view());
  copy(ctx, padded.dy.view().rows(0, length - 2), alone.dy.view());
  padded.extra.valid = valid;
  padded.forward();
  padded.backward();
  alone.forward();
  alone.backward();
  for (Index t = 0; t < length - 2; ++t) {
    CHECK(difference(naive::row(padded.y, t), naive::row(alone.y, t)) <= 1e-14);
    CHECK(difference(naive::row(padded.dx, t), naive::row(alone.dx, t)) <= 1e-14);
  }
  for (Index t = length - 2; t < length; ++t) CHECK(naive::row(padded.dx, t) == std::vector<double>(6, 0));
  CHECK(difference(values(padded.grads), values(alone.grads)) <= 1e-13);
}

TEST_CASE_TEMPLATE("GroupedQueryAttention: any division into segments gives the same bits", T, float, double) {
  constexpr Index items = 300, width = 8;
  GroupedQueryAttention a{.model_dim = width, .heads = 4, .kv_heads = 2, .norm = QueryKeyNorm::head};
  for (const Reach& reach :
       {Reach{}, Reach{.window = 40}, Reach{.chunk = 40}, Reach{.chunk = 257}, Reach{.floor_scale = 30}}) {
    a.window = reach.window;
    a.chunk = reach.chunk;
    a.temperature.floor_scale = reach.floor_scale;
    a.norm = reach.chunk > 0 ? QueryKeyNorm::rotated_head : QueryKeyNorm::head;
    CAPTURE(reach.window);
    CAPTURE(reach.chunk);
    CAPTURE(reach.floor_scale);
    const Index most = std::max(reach.window, reach.chunk);
    for (const int threads : {1, 2}) {
      Cpu::Context ctx(threads);
      auto whole = pass<T>(ctx, a, items);
      whole.infer();
      for (const auto& [step, keep] : std::initializer_list<std::pair<Index, Index>>{
               {7, most}, {64, most}, {299, most}, {7, 0}, {threads == 1 ? 1 : 40, most}}) {
        CacheSize size = a.cache(1, 1, items);
        size.keep = keep;
        KvCache<T, Cpu> cache(ctx, size);
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
        const Index items_at_once = step;  // doctest cannot capture structured bindings
        CAPTURE(items_at_once);
        CHECK(different == 0);
      }
    }
  }
}

TEST_CASE("GroupedQueryAttention: wrong options and inputs are refused") {
  Cpu::Context ctx(1);
  const auto options = [&](const GroupedQueryAttention& a) {
    return message_of([&] { init_params<double, Cpu>(a, ctx, Seed{1}); });
  };
  CHECK(options({.model_dim = 6, .heads = 4}) ==
        "GroupedQueryAttention: head_dim: expected at least 1, or 0 if heads divides model_dim = 6, got 0");
  CHECK(options({.model_dim = 8, .heads = 4, .kv_heads = 3}) ==
        "GroupedQueryAttention: kv_heads: expected 0 or a divisor of heads = 4, got 3");
  CHECK(options({.model_dim = 12, .heads = 4}) ==
        "GroupedQueryAttention: rotary.partial_rotary_factor: expected an even number of rotated values of a head of "
        "3, got 3");
  CHECK(options({.model_dim = 8, .heads = 4, .window = 3, .chunk = 5}) ==
        "GroupedQueryAttention: chunk: expected 0, because window is 3, got 5");
  CHECK(options({.model_dim = 8, .heads = 4, .chunk = -1}) ==
        "GroupedQueryAttention: chunk: expected at least 0, got -1");
  CHECK(options({.model_dim = 8, .heads = 4, .temperature = {.floor_scale = -2}}) ==
        "GroupedQueryAttention: temperature.floor_scale: expected at least 0, got -2");
  const GroupedQueryAttention a{.model_dim = 8, .heads = 2, .kv_heads = 1};
  auto p = pass<double>(ctx, a, 4);
  KvCache<double, Cpu> cache(ctx, a.cache(1, 1, 9));
  p.extra.cache = cache.of(4);
  CHECK(message_of([&] { p.forward(); }) ==
        "GroupedQueryAttention.forward: cache: expected none, because keys of earlier segments have no gradients; use "
        "infer, got a cache");
  p.infer();
  KvCache<double, Cpu> wide(ctx, {.parts = 2, .width = 16, .longest = 9});
  p.extra.cache = wide.of(4);
  CHECK(message_of([&] { p.infer(); }) ==
        "GroupedQueryAttention: cache: expected rows of 4 values (keys or values of a head), got rows of 16");
  p.params.branch.key.weight = Tensor<double, 3, Cpu>(1, 8, 8);
  CHECK(message_of([&] { p.infer(); }) ==
        "GroupedQueryAttention: params.key.weight: expected [1, 8, 4], got [1, 8, 8]");
}
