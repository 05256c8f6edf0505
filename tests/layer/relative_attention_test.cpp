#include "gatefold/layer/relative_attention.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "gatefold/check/conformance.hpp"
#include "gatefold/expert/layer_norm.hpp"
#include "gatefold/expert/linear.hpp"
#include "gatefold/gate/gates.hpp"
#include "gatefold/layer/block.hpp"
#include "gatefold/layer/mixture.hpp"
#include "gatefold/layer/pre_norm.hpp"
#include "gatefold/layer/relative_keys.hpp"
#include "gatefold/layer/residual.hpp"
#include "gatefold/layer/stack.hpp"
#include "gatefold/model/segment.hpp"
#include "gatefold/update/plain.hpp"
#include "support/backward_refuses.hpp"
#include "support/larger.hpp"
#include "support/naive_moe.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

using Rows = std::vector<std::vector<double>>;
const Noise noise{Random{Seed{9}, 4}};

/// Computes equations (1) and (2) in loops, for one sequence of items x that follow the earlier items `past`.
template <class P>
Rows attend(const RelativeAttention& a, const P& p, const Rows& past, const Rows& x, const Tensor<double, 2, Cpu>* e) {
  const Index dim = a.model_dim, width = dim / a.heads, items = Index(x.size());
  const auto times = [&](const Rows& rows, const Tensor<double, 2, Cpu>& w) {
    Rows y;
    for (const auto& row : rows)
      y.push_back(naive::affine(
          row, dim, [&](Index d, Index j) { return w(d, j); }, [](Index) { return 0.0; }));
    return y;
  };
  Rows all = past;
  all.insert(all.end(), x.begin(), x.end());
  const Rows q = times(x, p.query), k = times(all, p.key), v = times(all, p.value);
  Rows context(x.size(), std::vector<double>(std::size_t(dim), 0));
  for (Index i = 0; i < items; ++i)
    for (Index h = 0; h < a.heads; ++h) {
      double total = 0;
      std::vector<std::pair<Index, double>> seen;
      for (Index o = a.itself ? 1 - a.window : -a.window; o < (a.itself ? 1 : 0); ++o) {
        const Index j = Index(past.size()) + i + o, place = o + a.window - (a.itself ? 1 : 0);
        if (j < 0) continue;
        double score = 0;
        for (Index d = h * width; d < (h + 1) * width; ++d)
          score += q[std::size_t(i)][std::size_t(d)] *
                   (k[std::size_t(j)][std::size_t(d)] + (e ? (*e)(place, d - h * width) : 0));
        seen.push_back({j, std::exp(score / std::sqrt(double(width)))});
        total += seen.back().second;
      }
      for (const auto& [j, weight] : seen)
        for (Index d = h * width; d < (h + 1) * width; ++d)
          context[std::size_t(i)][std::size_t(d)] += weight / total * v[std::size_t(j)][std::size_t(d)];
    }
  return times(context, p.output);
}
Rows rows_of(const Tensor<double, 2, Cpu>& t, Index first, Index count) {
  Rows rows;
  for (Index n = first; n < first + count; ++n) rows.push_back(naive::row(t, n));
  return rows;
}
std::vector<double> flat(const Rows& rows) {
  std::vector<double> all;
  for (const auto& row : rows) all.insert(all.end(), row.begin(), row.end());
  return all;
}
std::vector<double> part(const Tensor<double, 2, Cpu>& t, Index first, Index count) {
  return flat(rows_of(t, first, count));
}

}  // namespace

TEST_CASE("RelativeAttention (1), (2): equals loops for consecutive segments") {
  Cpu::Context ctx(2);
  constexpr Index length = 3, segments = 4, dim = 6;
  for (const bool itself : {true, false})
    for (const Index heads : {1, 2, 3})
      for (const Index window : {1, 2, 5, 20})
        for (const bool places : {false, true}) {
          const RelativeAttention a{.model_dim = dim, .heads = heads, .window = window, .itself = itself};
          auto p = pass<double>(ctx, a, 2 * length);
          const auto e = uniform_tensor<double>(ctx, Seed{5}, 1, window, dim / heads);
          const auto stream = uniform_tensor<double>(ctx, Seed{6}, 1, 2 * length * segments, dim);
          SegmentMemory<double, Cpu> memory(ctx, {.sequences = 2, .width = dim, .most = a.remembers()});
          if (!itself) memory.begin(ctx, window);  // begins with `window` rows of zeros, which are keys
          Rows past[2];
          for (auto& rows : past) rows.assign(std::size_t(itself ? 0 : window), std::vector<double>(dim, 0));
          p.extra.length = length;
          if (places) p.extra.relative = e;
          for (Index s = 0; s < segments; ++s) {
            for (Index g = 0; g < 2; ++g)
              copy(ctx, stream.view().rows((g * segments + s) * length, length), p.x.view().rows(g * length, length));
            p.extra.memory = memory.of(length);
            p.forward();
            for (Index g = 0; g < 2; ++g) {
              const Rows x = rows_of(p.x, g * length, length);
              const Rows expected = attend(a, p.params.branch, past[g], x, places ? &e : nullptr);
              REQUIRE(difference(part(p.y, g * length, length), flat(expected)) <= 1e-12);
              past[g].insert(past[g].end(), x.begin(), x.end());
            }
            const auto forward = values(p.y);
            p.infer();
            REQUIRE(same_bits(values(p.y), forward));
            memory.advance();
          }
        }
}

TEST_CASE("RelativeAttention: reference() gives 0 for the first item") {
  Cpu::Context ctx(1);
  const auto a = RelativeAttention::reference({.model_dim = 4, .heads = 2, .window = 3});
  CHECK(a.remembers() == 3);
  auto p = pass<double>(ctx, a, 5);
  const auto e = uniform_tensor<double>(ctx, Seed{5}, 1, 3, 2);
  SegmentMemory<double, Cpu> memory(ctx, {.width = 4, .most = 3});
  memory.begin(ctx, 3);
  p.extra = {.relative = e, .memory = memory.of(5)};
  p.forward();
  CHECK(naive::row(p.y, 0) == std::vector<double>(4, 0));
  CHECK(naive::row(p.y, 1) != std::vector<double>(4, 0));
  // Without earlier items the first item sees no key, so its context is 0, too.
  p.extra.memory = {};
  p.forward();
  CHECK(naive::row(p.y, 0) == std::vector<double>(4, 0));
}

TEST_CASE_TEMPLATE("RelativeAttention: item-by-item generation equals the whole sequence", T, float, double) {
  Cpu::Context ctx(1);
  constexpr Index items = 300, dim = 6;
  for (const bool itself : {true, false})
    for (const Index window : {1, 4, 37, 128, 270}) {
      const RelativeAttention a{.model_dim = dim, .heads = 2, .window = window, .itself = itself};
      const auto e = uniform_tensor<T>(ctx, Seed{5}, 1, window, dim / 2);
      auto whole = pass<T>(ctx, a, 2 * items);
      whole.extra = {.length = items, .relative = e};
      whole.infer();
      auto step = pass<T>(ctx, a, 2);
      SegmentMemory<T, Cpu> memory(ctx, {.sequences = 2, .width = 2 * dim, .most = a.remembers()});
      Index different = 0;
      double worst = 0;
      for (Index t = 0; t < items; ++t) {
        for (Index g = 0; g < 2; ++g) copy(ctx, whole.x.view().rows(g * items + t, 1), step.x.view().rows(g, 1));
        step.extra = {.length = 1, .relative = e, .memory = memory.of(1)};
        step.infer();
        memory.advance();
        for (Index g = 0; g < 2; ++g)
          for (Index d = 0; d < dim; ++d) {
            const T expected = whole.y(g * items + t, d);
            different += step.y(g, d) != expected ? 1 : 0;
            worst = support::larger(worst, std::abs(double(step.y(g, d)) - double(expected)));
          }
      }
      CAPTURE(window);
      CHECK(worst <= (sizeof(T) == 4 ? 1e-6 : 1e-15));
      if (window <= 128) CHECK(different == 0);
    }
}

TEST_CASE_TEMPLATE("RelativeAttention: with memory, bits do not depend on later items", T, float, double) {
  Cpu::Context ctx(1);
  constexpr Index dim = 6, all = 700;
  for (const bool itself : {true, false})
    for (const Index window : {64, 100, 128, 200, 512}) {
      CAPTURE(window);
      const RelativeAttention a{.model_dim = dim, .heads = 2, .window = window, .itself = itself};
      const auto e = uniform_tensor<T>(ctx, Seed{5}, 1, window, dim / 2);
      const auto from = pass<T>(ctx, a, all);
      const Index most = a.remembers();
      // Runs items begin … begin + items − 1 of `from`; the memory holds up to `most` items before them.
      const auto segment = [&](Index begin, Index items) {
        auto p = pass<T>(ctx, a, items);
        copy(ctx, from.x.view().rows(begin, items), p.x.view());
        const Index past = std::min(most, begin);
        p.extra = {.length = items,
                   .relative = e,
                   .memory = {View<const T, 3, Cpu>(from.x.view().rows(begin - past, past).data(), 1, past, dim)}};
        p.forward();
        p.infer();
        return values(p.y);
      };
      for (const Index begin : {0, 63, 300}) {
        CAPTURE(begin);
        const auto longest = segment(begin, 400);
        for (const Index items : {1, 150, 192, 193, 257, 399}) {
          const auto shorter = segment(begin, items);
          CHECK(std::memcmp(shorter.data(), longest.data(), shorter.size() * sizeof shorter[0]) == 0);
        }
        if (window > 128) continue;
        for (const Index later : {1, 129}) {
          const auto rest = segment(begin + later, 400 - later);
          CHECK(std::memcmp(rest.data(), longest.data() + later * dim, rest.size() * sizeof rest[0]) == 0);
        }
      }
    }
}

TEST_CASE("RelativeAttention: a new stream is independent of the previous stream") {
  Cpu::Context ctx(1);
  constexpr Index dim = 6, window = 7, steps = 12, change = 5;
  const RelativeAttention a{.model_dim = dim, .heads = 2, .window = window};
  const auto from = pass<float>(ctx, a, 3 * steps);
  // Two streams run side by side. The second ends after some steps, and a third begins in its place.
  SegmentMemory<float, Cpu> memory(ctx, {.sequences = 2, .width = dim, .most = a.remembers()}),
      alone(ctx, {.width = dim, .most = a.remembers()});
  for (Index t = 0; t < steps; ++t) {
    const Index second = t < change ? steps + t : 2 * steps + t - change;
    auto both = pass<float>(ctx, a, 2), one = pass<float>(ctx, a, 1);
    copy(ctx, from.x.view().rows(t, 1), both.x.view().rows(0, 1));
    copy(ctx, from.x.view().rows(second, 1), both.x.view().rows(1, 1));
    both.extra = {.length = 1, .memory = memory.of(1)};
    both.infer();
    if (t + 1 == change) {
      const auto& valid = both.extra.memory.next_valid;
      for (Index i = valid.extent(0) / 2; i < valid.extent(0); ++i) valid(i) = 0;
    }
    memory.advance();
    if (t < change) continue;
    copy(ctx, from.x.view().rows(second, 1), one.x.view());
    one.extra = {.length = 1, .memory = alone.of(1)};
    one.infer();
    alone.advance();
    CHECK(std::memcmp(both.y.data() + dim, one.y.data(), dim * sizeof(float)) == 0);
  }
}

TEST_CASE("RelativeAttention: stacked segments equal one pass over all items") {
  Cpu::Context ctx(1);
  constexpr Index length = 4, segments = 3, dim = 6;
  const RelativeAttention a{.model_dim = dim, .heads = 2, .window = 30};
  const RelativeKeys model{30, 3, Stack{Residual{update::Plain{}, PreNorm{LayerNorm{}, a}}, 3}};
  auto whole = pass<double>(ctx, model, length * segments);
  whole.infer();
  for (const Index width : {dim, 2 * dim}) {
    auto p = pass<double>(ctx, model, length);
    SegmentMemory<double, Cpu> memory(ctx, {.layers = 3, .width = width, .most = a.remembers()});
    for (Index s = 0; s < segments; ++s) {
      copy(ctx, whole.x.view().rows(s * length, length), p.x.view());
      p.extra.memory = memory.of(length);
      width == dim ? p.forward() : p.infer();
      memory.advance();
      CHECK(difference(values(p.y), part(whole.y, s * length, length)) <= 1e-12);
    }
  }
}

TEST_CASE("RelativeAttention: gradients with segments and dropout are correct") {
  Cpu::Context ctx(1);
  for (const bool itself : {true, false})
    for (const Index heads : {1, 2})
      for (const double dropout : {0.0, 0.3})
        for (const Index past : {0, 3}) {
          const RelativeKeys model{
              4, 4 / heads,
              NoResidual{RelativeAttention{
                  .model_dim = 4, .heads = heads, .window = 4, .dropout = dropout, .itself = itself}}};
          const auto before = uniform_tensor<double>(ctx, Seed{8}, 1, 1, 2 * past, 4);
          Extra<decltype(model), double, Cpu> extra{.length = 5, .noise = noise};
          if (past > 0) extra.memory.past = before;
          const auto report = check::gradients(ctx, model, {.items = 10}, extra);
          CHECK_MESSAGE(report, report.str());
        }
}

namespace {

/// Returns x and the parameters of a branch as slots for finite differences.
template <class P>
std::vector<check::GradientSlot> slots_of(P& p) {
  std::vector<check::GradientSlot> slots{{"x", p.x.data(), std::as_const(p.dx).data(), p.x.size()}};
  for_each_tensor(
      [&](const Name& name, auto& t, const auto& g) {
        slots.push_back({name.str(), t.data(), g.data(), t.size()});
      },
      p.params, std::as_const(p.grads));
  return slots;
}

}  // namespace

TEST_CASE("RelativeAttention: the trace covers the segment, entropy all keys") {
  Cpu::Context ctx(1);
  constexpr Index length = 4, dim = 6, heads = 2, width = 3;
  for (const bool itself : {true, false})
    for (const Index window : {1, 3, 4, 9})
      for (const Index past : {0, 2}) {
        if (past > (itself ? window - 1 : window)) continue;
        const RelativeAttention a{.model_dim = dim, .heads = heads, .window = window, .dropout = 0.4, .itself = itself};
        auto p = pass<double>(ctx, a, 2 * length);
        const auto e = uniform_tensor<double>(ctx, Seed{5}, 1, window, width);
        const auto before = uniform_tensor<double>(ctx, Seed{6}, 1, 1, 2 * past, dim);
        p.extra = {.length = length, .relative = e, .noise = noise, .traced = true};
        if (past > 0) p.extra.memory.past = before;
        p.forward();
        const auto trace = p.layer.trace(p.params, p.saved);
        CHECK(trace.length == length);
        CHECK(trace.causal);
        CHECK(trace.heads() == heads);
        CHECK(trace.output.data() == p.params.branch.output.data());
        REQUIRE(trace.k.extent(0) == 2 * length);
        REQUIRE(trace.places.extent(0) == trace.window.width);
        const auto column = [&](const std::vector<double>& x, const Tensor<double, 2, Cpu>& w, Index c) {
          double v = 0;
          for (Index d = 0; d < dim; ++d) v += x[std::size_t(d)] * w(d, c);
          return v;
        };
        for (Index i = 0; i < 2 * length; ++i)
          for (Index h = 0; h < heads; ++h) {
            const Index g = i / length, t = i % length;
            std::vector<double> weights;  // of all keys in the window, oldest first
            std::vector<Index> items;     // their items in the segment; negative: remembered items
            for (Index o = 0; o < window; ++o) {
              const Index j = t + o - (itself ? window - 1 : window);
              if (j < -past) continue;
              std::vector<double> from(dim);
              for (Index d = 0; d < dim; ++d)
                from[std::size_t(d)] = j < 0 ? before(0, (g + 1) * past + j, d) : p.x(g * length + j, d);
              double score = 0;
              for (Index c = h * width; c < (h + 1) * width; ++c)
                score += column(naive::row(p.x, i), p.params.branch.query, c) *
                         (column(from, p.params.branch.key, c) + e(o, c - h * width));
              weights.push_back(std::exp(score / std::sqrt(double(width))));
              items.push_back(j);
            }
            double total = 0, entropy = 0;
            for (const double w : weights) total += w;
            Index seen = 0;
            for (std::size_t n = 0; n < weights.size(); ++n) {
              const double expected = weights[n] / total;
              entropy -= expected * std::log(expected);
              if (items[n] < 0) continue;
              REQUIRE(trace.window.sees(t, items[n]));
              double dot = 0;
              for (Index c = h * width; c < (h + 1) * width; ++c)
                dot += trace.q(i, c) * (trace.k(g * length + items[n], c) +
                                        trace.places(items[n] - trace.window.first(t), c - h * width));
              CHECK(std::abs(std::exp(trace.scale * dot - trace.log_sum_exp(i, h)) - expected) <= 1e-14);
              ++seen;
            }
            Index shown = 0;
            for (Index j = 0; j < length; ++j) shown += trace.window.sees(t, j) ? 1 : 0;
            CHECK(shown == seen);
            CHECK(std::abs(trace.entropy(i, h) - entropy) <= 1e-14);
          }
      }
}

TEST_CASE("RelativeAttention: saves a trace only if extra.traced is true") {
  Cpu::Context ctx(1);
  const RelativeAttention a{.model_dim = 6, .heads = 2, .window = 3};
  auto silent = pass<float>(ctx, a, 10), asked = pass<float>(ctx, a, 10);
  asked.extra.traced = true;
  silent.forward();
  asked.forward();
  CHECK(same_bits(values(silent.y), values(asked.y)));
  CHECK(silent.saved.branch.trace.entropy.size() == 0);
  CHECK(message_of([&] { (void)silent.layer.trace(silent.params, silent.saved); }) ==
        "RelativeAttention.trace: extra.traced of forward: expected true, got false");
}

TEST_CASE("RelativeAttention: backward includes the adjoint of the trace") {
  Cpu::Context ctx(1);
  for (const Index window : {2, 3, 6})
    for (const Index past : {0, 1}) {
      const RelativeAttention a{.model_dim = 6, .heads = 2, .window = window, .dropout = 0.3};
      auto p = pass<double>(ctx, a, 8);
      auto e = uniform_tensor<double>(ctx, Seed{5}, 1, window, 3);
      auto de = constant_tensor<double>(ctx, 0, window, 3);
      const auto before = uniform_tensor<double>(ctx, Seed{6}, 1, 1, 2 * past, 6);
      p.extra = {.length = 4, .relative = e, .noise = noise, .traced = true};
      if (past > 0) p.extra.memory.past = before;
      p.forward();
      const auto given = [&](std::uint64_t seed, Index rows, Index columns) {
        return uniform_tensor<double>(ctx, Seed{seed}, 1, rows, columns);
      };
      auto dq = given(11, 8, 6), dk = given(12, 8, 6), dv = given(13, 8, 6), dlse = given(14, 8, 2),
           doutput = given(15, 6, 6), dplaces = given(16, p.layer.trace(p.params, p.saved).places.extent(0), 3);
      RelativeAttention::ExtraGrad<double, Cpu> dextra{
          .relative = de,
          .trace = {.q = dq, .k = dk, .v = dv, .log_sum_exp = dlse, .output = doutput, .places = dplaces}};
      a.backward(ctx, p.params.branch, p.x, p.saved.branch, p.dy, p.dx, p.grads.branch, p.extra, dextra);
      auto slots = slots_of(p);
      slots.push_back({"e", e.data(), std::as_const(de).data(), e.size()});
      const auto dot = [](const auto& x, const auto& y) {
        double f = 0;
        for (Index i = 0; i < x.size(); ++i) f += x.data()[i] * y.data()[i];
        return f;
      };
      const auto report = check::compare_gradients(
          slots,
          [&] {
            p.forward();
            const auto t = p.layer.trace(p.params, p.saved);
            return dot(p.y, p.dy) + dot(t.q, dq) + dot(t.k, dk) + dot(t.v, dv) + dot(t.log_sum_exp, dlse) +
                   dot(t.output, doutput) + dot(t.places, dplaces);
          },
          [] { return std::uint64_t(0); }, {});
      CHECK_MESSAGE(report, report.str());
    }
}

TEST_CASE("RelativeAttention: gradients with an attention-aware gate are correct") {
  Cpu::Context ctx(1);
  const auto block = [](bool itself, FollowedHead head) {
    return Block{
        Residual{update::Plain{},
                 PreNorm{LayerNorm{},
                         RelativeAttention{.model_dim = 4, .heads = 2, .window = 4, .dropout = 0.3, .itself = itself}}},
        Residual{update::Plain{},
                 Mixture{AttentionAware<SoftmaxTopK>{
                             .scores = {.experts = 3}, .mixing = {.head = head}, .selection = {.k = 2}},
                         Linear{.model_dim = 4}}}};
  };
  const auto before = uniform_tensor<double>(ctx, Seed{8}, 1, 2, 6, 4);
  const auto check = [&](const auto& model, Index past) {
    using Model = std::remove_cvref_t<decltype(model)>;
    auto extra = extra_of<Extra<Model, double, Cpu>>(Segment<double, Cpu>{
        .length = 5,
        .noise = noise,
        .memory = {past > 0 ? View<const double, 3, Cpu>(before) : View<const double, 3, Cpu>{}, {}}});
    const auto report = check::gradients(ctx, model, {.items = 10, .of_largest = 1e-8, .moved = 0.3}, extra);
    CHECK_MESSAGE(report, report.str());
    auto p = pass<double>(ctx, model, 10);
    p.extra = extra;
    p.forward();
    const auto forward = values(p.y);
    p.layer.begin(ctx, p.params, 10, p.carry);
    p.infer();
    CHECK(same_bits(values(p.y), forward));
  };
  for (const bool itself : {true, false})
    for (const FollowedHead head : {FollowedHead::lowest_entropy, FollowedHead::every})
      for (const Index past : {0, 3}) check(RelativeKeys{4, 2, Stack{block(itself, head), 2}}, past);
  check(Stack{RelativeKeys{4, 2, block(true, FollowedHead::lowest_entropy)}, 2}, 3);
}

TEST_CASE("RelativeAttention: padded sequences equal the same sequences alone") {
  Cpu::Context ctx(2);
  constexpr Index length = 4, segments = 3, dim = 6, sequences = 3;
  // In each segment, items are at positions [first, last). Padding stands after the end of a sequence, or before its
  // beginning.
  const Index first[sequences][segments] = {{0, 0, 0}, {0, 0, 0}, {3, 0, 0}},
              last[sequences][segments] = {{4, 4, 4}, {4, 2, 0}, {4, 4, 4}};
  for (const bool itself : {true, false})
    for (const Index window : {2, 5, 20})
      for (const Index width : {dim, 2 * dim}) {
        const RelativeAttention a{.model_dim = dim, .heads = 2, .window = window, .itself = itself};
        auto p = pass<double>(ctx, a, sequences * length);
        const auto e = uniform_tensor<double>(ctx, Seed{5}, 1, window, dim / 2);
        const auto stream = uniform_tensor<double>(ctx, Seed{6}, 1, sequences * length * segments, dim);
        SegmentMemory<double, Cpu> memory(ctx, {.sequences = sequences, .width = width, .most = a.remembers()});
        Rows past[sequences];
        for (Index s = 0; s < segments; ++s) {
          std::vector<double> valid;
          for (Index g = 0; g < sequences; ++g)
            for (Index t = 0; t < length; ++t) {
              valid.push_back(first[g][s] <= t && t < last[g][s] ? 1 : 0);
              for (Index d = 0; d < dim; ++d)
                p.x(g * length + t, d) = valid.back() != 0 ? stream((g * segments + s) * length + t, d) : quiet_nan;
            }
          p.extra = {.length = length, .valid = valid, .relative = e, .memory = memory.of(length)};
          if (width == dim) {
            p.forward();
            const auto forward = values(p.y);
            p.infer();
            REQUIRE(same_bits(values(p.y), forward));
          } else {
            p.infer();
          }
          memory.advance();
          for (Index g = 0; g < sequences; ++g) {
            const Rows x = rows_of(p.x, g * length + first[g][s], last[g][s] - first[g][s]);
            const auto expected = flat(attend(a, p.params.branch, past[g], x, &e));
            if (!x.empty())
              REQUIRE(difference(part(p.y, g * length + first[g][s], Index(x.size())), expected) <= 1e-12);
            for (Index t = 0; t < length; ++t)
              for (Index d = 0; d < dim && (t < first[g][s] || t >= last[g][s]); ++d)
                REQUIRE(p.y(g * length + t, d) == 0);
            past[g].insert(past[g].end(), x.begin(), x.end());
          }
        }
      }
}

TEST_CASE("RelativeAttention: gradients with padding are correct, 0 for padding") {
  Cpu::Context ctx(1);
  const std::vector<double> valid{1, 1, 0, 1, 0, 0, 0, 1, 1, 1}, valid_past{1, 0, 1, 0, 1, 1};
  const auto before = uniform_tensor<double>(ctx, Seed{8}, 1, 1, 6, 4);
  for (const bool itself : {true, false})
    for (const bool remembered : {false, true}) {
      const RelativeKeys model{
          4, 2,
          NoResidual{RelativeAttention{.model_dim = 4, .heads = 2, .window = 4, .dropout = 0.3, .itself = itself}}};
      Extra<decltype(model), double, Cpu> extra{.length = 5, .valid = valid, .noise = noise};
      if (remembered) {
        extra.memory.past = before;
        extra.memory.valid = valid_past;
      }
      const auto report = check::gradients(ctx, model, {.items = 10}, extra);
      CHECK_MESSAGE(report, report.str());
    }
  // Padding, and the adjoint of its output, may hold anything.
  auto clean = pass<float>(ctx, RelativeAttention{.model_dim = 6, .heads = 2, .window = 4}, 10),
       poisoned = pass<float>(ctx, RelativeAttention{.model_dim = 6, .heads = 2, .window = 4}, 10);
  const std::vector<float> mask(valid.begin(), valid.end());
  for (Index n = 0; n < 10; ++n)
    for (Index d = 0; d < 6 && mask[std::size_t(n)] == 0; ++d)
      poisoned.x(n, d) = poisoned.dy(n, d) = std::numeric_limits<float>::quiet_NaN();
  for (auto* p : {&clean, &poisoned}) {
    p->extra = {.length = 5, .valid = mask};
    p->forward();
    p->backward();
  }
  CHECK(same_bits(values(poisoned.y, poisoned.dx, poisoned.grads), values(clean.y, clean.dx, clean.grads)));
  for (Index n = 0; n < 10; ++n)
    for (Index d = 0; d < 6 && mask[std::size_t(n)] == 0; ++d) {
      CHECK(clean.y(n, d) == 0);
      CHECK(clean.dx(n, d) == 0);
    }
}

TEST_CASE("RelativeAttention: passes conformance") {
  for (const double dropout : {0.0, 0.5}) {
    const auto report = check::conformance<Cpu, double>(
        RelativeAttention{.model_dim = 4, .heads = 2, .window = 3, .dropout = dropout}, {},
        [&]<class T>(Element<T>, Index, Index) { return RelativeAttention::Extra<T, Cpu>{.noise = noise}; });
    CHECK_MESSAGE(report, report.str());
  }
}

TEST_CASE("RelativeAttention: later items change no bit; dropout needs noise") {
  Cpu::Context ctx(1);
  const RelativeAttention a{.model_dim = 6, .heads = 2, .window = 5};
  auto clean = pass<float>(ctx, a, 20), changed = pass<float>(ctx, a, 20);
  for (Index n = 13; n < 20; ++n)
    for (Index d = 0; d < 6; ++d) changed.x(n, d) = std::numeric_limits<float>::quiet_NaN();
  clean.forward();
  changed.forward();
  CHECK(std::memcmp(clean.y.data(), changed.y.data(), 13 * 6 * sizeof(float)) == 0);
  auto silent = pass<float>(ctx, RelativeAttention{.model_dim = 6, .heads = 2, .window = 5, .dropout = 0.5}, 20);
  silent.forward();
  CHECK(same_bits(values(silent.y), values(clean.y)));
  clean.extra.noise = noise;
  clean.forward();
  CHECK(same_bits(values(silent.y), values(clean.y)));
  silent.extra.noise = noise;
  silent.forward();
  CHECK_FALSE(same_bits(values(silent.y), values(clean.y)));
}

TEST_CASE("RelativeAttention: wrong shapes or saved throw before backward writes") {
  check_backward_refuses("RelativeAttention", RelativeAttention{.model_dim = 6, .heads = 2, .window = 3},
                         "saved.items: expected [0, 6], got [0, 0]");
}

TEST_CASE("RelativeAttention: wrong options or shapes throw before any write") {
  Cpu::Context ctx(1);
  for (const Index heads : {Index(0), Index(3)})
    CHECK(message_of([&] {
            (void)RelativeAttention{.model_dim = 4, .heads = heads, .window = 2}.init<float, Cpu>(ctx, {});
          }) == "RelativeAttention: heads: expected a divisor of model_dim = 4, got " + std::to_string(heads));
  CHECK(message_of([&] { (void)RelativeAttention{.window = 2}.init<float, Cpu>(ctx, {}); }) ==
        "RelativeAttention: model_dim: expected at least 1, got 0");
  CHECK(message_of([&] { (void)RelativeAttention{.model_dim = 4}.init<float, Cpu>(ctx, {}); }) ==
        "RelativeAttention: window: expected at least 1, got 0");
  CHECK(message_of([&] {
          (void)RelativeAttention{.model_dim = 4, .window = 2, .dropout = 1}.init<float, Cpu>(ctx, {});
        }) == "RelativeAttention: dropout: expected 0 <= dropout < 1, got 1");
  CHECK(RelativeAttention{.window = 2}.with_model_dim(6).model_dim == 6);
  const auto message = [&](auto&& change) {
    auto p = pass<float>(ctx, RelativeAttention{.model_dim = 6, .heads = 2, .window = 3}, 10);
    change(p);
    const auto text = message_of([&] { p.forward(); });
    CHECK(p.untouched());
    CHECK(p.saved.branch.q.size() == 0);
    return text;
  };
  CHECK(message([](auto& p) { p.extra.length = 4; }) ==
        "RelativeAttention.forward: sequence.length: expected a divisor of the number of items 10, got 4");
  const std::vector<float> nine(9, 1), ten(10, 1);
  CHECK(message([&](auto& p) { p.extra.valid = nine; }) ==
        "RelativeAttention.forward: sequence.valid: expected [10], got [9]");
  CHECK(message([](auto& p) { p.params.branch.key.resize(6, 5); }) ==
        "RelativeAttention: params.key: expected [6, 6], got [6, 5]");
  const Tensor<float, 2, Cpu> e(4, 3);
  CHECK(message([&](auto& p) { p.extra.relative = e; }) ==
        "RelativeAttention: extra.relative: expected [3, 3], got [4, 3]");
  SegmentMemory<float, Cpu> pairs(ctx, {.sequences = 2, .width = 12, .most = 2});
  CHECK(message([&](auto& p) { p.extra.length = 5, p.extra.memory = pairs.of(5); }) ==
        "RelativeAttention: memory.past: expected rows of 6 values (items), got rows of 12");
  SegmentMemory<float, Cpu> unsaid(ctx, {.width = 6, .most = 2});
  CHECK(message([&](auto& p) {
          p.extra.valid = ten;
          p.extra.memory = unsaid.of(10);
          p.extra.memory.next_valid = {};
        }) ==
        "RelativeAttention: memory.next_valid: expected a mask, because memory.next is given and some items are "
        "padding, got no mask");
  SegmentMemory<float, Cpu> two(ctx, {.sequences = 2, .width = 6, .most = 2});
  CHECK(message([&](auto& p) { p.extra.memory = two.of(5); }) ==
        "RelativeAttention: memory: expected memory of 1 sequences (items / length of the segment), got memory of 2");
}
