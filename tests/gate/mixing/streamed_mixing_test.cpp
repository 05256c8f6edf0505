#include "gatefold/gate/mixing/streamed_mixing.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/backend/initial_values.hpp"
#include "gatefold/check/gradient.hpp"
#include "support/pass.hpp"
#include "support/slow_build.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

/// Inputs of a mixing with H heads, and its results.
template <class T>
struct Mixing {
  Cpu::Context ctx;
  Tensor<T, 3, Cpu> queries, keys;         // [H, N, F]
  Tensor<T, 2, Cpu> r, log_r, q, log_q;    // [N, E]
  Tensor<T, 1, Cpu> log_sum_exp, entropy;  // [N]
  Tensor<T, 2, Cpu> places;                // [width, F]; empty: none
  std::vector<T> mask;
  Visible<T, Cpu> visible;
  double scale = 0.7;

  Mixing(Index heads, Index items, Index length, Index dim, Index experts, bool causal, int threads = 1)
      : ctx(threads),
        queries(uniform_tensor<T>(ctx, Seed{1}, 1, heads, items, dim)),
        keys(uniform_tensor<T>(ctx, Seed{2}, 1, heads, items, dim)),
        r(items, experts),
        log_r(items, experts),
        q(items, experts),
        log_q(items, experts),
        log_sum_exp(items),
        entropy(uniform_tensor<T>(ctx, Seed{6}, 1, items)) {
    fill_uniform(ctx, Seed{5}, 0.1, 1, r);
    visible.length = length;
    visible.causal = causal;
    refresh();
  }
  void refresh() {
    for (Index i = 0; i < r.size(); ++i) log_r.data()[i] = std::log(r.data()[i]);
  }
  void hide(std::vector<T> valid) {
    mask = std::move(valid);
    visible.valid = mask;
  }
  /// Limits each item to a window of `width` items, which ends at the item (itself) or just before it, and gives each
  /// place in the window a position key.
  void reach(Index width, bool itself) {
    visible.window = {visible.length, 0, width, itself};
    places = uniform_tensor<T>(ctx, Seed{9}, 1, width, queries.extent(2));
  }
  MixingHeads<const T, Cpu> heads() const { return {queries, keys, {}, places}; }
  void forward() {
    detail_::mixing::forward<Cpu::Context, T, Cpu>(ctx, heads(), scale, visible, r, log_r, q, log_q, log_sum_exp);
  }
};

/// Equations (1) and (2) for item i, with all weights computed first.
template <class T>
std::vector<double> naive_q(const Mixing<T>& m, Index i, bool log_domain) {
  const Index first = i / m.visible.length * m.visible.length, experts = m.r.extent(1);
  std::vector<double> logs;
  std::vector<Index> from;
  for (Index h = 0; h < m.queries.extent(0); ++h)
    for (Index j = first; j < first + m.visible.length; ++j) {
      if (m.visible.causal && j > i) continue;
      const Index place = j - i + m.visible.window.width - (m.visible.window.itself ? 1 : 0);
      if (m.visible.window.width > 0 && (place < 0 || place >= m.visible.window.width)) continue;
      if (!m.mask.empty() && (m.mask[static_cast<std::size_t>(i)] == 0 || m.mask[static_cast<std::size_t>(j)] == 0))
        continue;
      if (m.visible.entropy.data() && j != i && m.entropy(j) > m.entropy(i)) continue;
      double dot = 0;
      for (Index d = 0; d < m.queries.extent(2); ++d)
        dot += double(m.queries(h, i, d)) *
               (double(m.keys(h, j, d)) + (m.places.size() > 0 ? double(m.places(place, d)) : 0));
      logs.push_back(m.scale * dot);
      from.push_back(j);
    }
  std::vector<double> result(static_cast<std::size_t>(experts));
  if (logs.empty()) {
    for (Index e = 0; e < experts; ++e) result[static_cast<std::size_t>(e)] = log_domain ? m.log_r(i, e) : m.r(i, e);
    return result;
  }
  double top = logs[0], total = 0;
  for (const double v : logs) top = std::max(top, v);
  for (const double v : logs) total += std::exp(v - top);
  for (Index e = 0; e < experts; ++e) {
    double best = -infinity, sum = 0;
    for (std::size_t a = 0; a < logs.size(); ++a) best = std::max(best, logs[a] + m.log_r(from[a], e));
    for (std::size_t a = 0; a < logs.size(); ++a) sum += std::exp(logs[a] + m.log_r(from[a], e) - best);
    const double log_q = best + std::log(sum) - top - std::log(total);
    result[static_cast<std::size_t>(e)] = log_domain ? log_q : std::exp(log_q);
  }
  return result;
}
void check_against_loops(const Mixing<double>& m) {
  for (Index i = 0; i < m.q.extent(0); ++i) {
    const auto q = naive_q(m, i, false), log_q = naive_q(m, i, true);
    for (Index e = 0; e < m.q.extent(1); ++e) {
      REQUIRE(m.q(i, e) == doctest::Approx(q[static_cast<std::size_t>(e)]).epsilon(1e-12));
      REQUIRE(m.log_q(i, e) == doctest::Approx(log_q[static_cast<std::size_t>(e)]).epsilon(1e-12));
    }
  }
}

}  // namespace

TEST_CASE("streamed mixing (1), (2): averages over all visible items" * doctest::skip(support::slow_build)) {
  for (const bool causal : {false, true}) {
    CAPTURE(causal);
    Mixing<double> small(2, 12, 4, 3, 3, causal), large(2, 2 * 600, 600, 2, 2, causal), one(1, 1, 1, 2, 3, causal);
    for (auto* m : {&small, &large, &one}) {
      m->forward();
      check_against_loops(*m);
    }
    small.hide({0, 1, 1, 0, 0, 0, 0, 0, 1, 0, 0, 1});  // the second sequence is all padding
    small.forward();
    check_against_loops(small);
    small.visible.entropy = small.entropy;
    small.forward();
    check_against_loops(small);
  }
}

TEST_CASE("streamed mixing (1), (2): lengths around a block equal loops" * doctest::skip(support::slow_build)) {
  for (const bool causal : {false, true})
    for (const Index length : {1, 2, 17, 127, 128, 129, 513}) {
      CAPTURE(causal);
      CAPTURE(length);
      Mixing<double> m(1, 3 * length, length, 3, 3, causal);
      m.forward();
      check_against_loops(m);
      std::vector<double> mask;
      for (Index n = 0; n < 3 * length; ++n) mask.push_back(n % 5 == 1 || n % 7 == 3 ? 0 : 1);
      m.hide(mask);
      m.visible.entropy = m.entropy;
      m.forward();
      check_against_loops(m);
    }
}

TEST_CASE("streamed mixing (1), (2): averages only items in the window" * doctest::skip(support::slow_build)) {
  for (const bool itself : {true, false})
    for (const Index width : {1, 3, 200})
      for (const Index length : {1, 4, 300}) {
        CAPTURE(itself);
        CAPTURE(width);
        CAPTURE(length);
        Mixing<double> m(2, 3 * length, length, 3, 3, true);
        m.reach(width, itself);
        m.forward();
        check_against_loops(m);
        m.visible.entropy = m.entropy;
        for (Index n = 0; n < 3 * length; ++n) {
          m.log_r(n, 1) = -1000 - double(n % 7);
          m.r(n, 1) = 0;
        }
        m.forward();
        check_against_loops(m);
      }
}

TEST_CASE("streamed mixing: nonfinite r affects only items that read it") {
  const float inf = std::numeric_limits<float>::infinity();
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), inf, -inf})
    for (const Index length : {40, 300}) {
      CAPTURE(length);
      Mixing<float> all(2, 2 * length, length, 5, 3, true), changed(2, 2 * length, length, 5, 3, true);
      all.forward();
      changed.r(31, 1) = bad;
      changed.forward();
      for (Index n = 0; n < 2 * length; ++n)
        for (Index e = 0; e < 3; ++e) {
          if (n < 31 || n >= length) CHECK(changed.q(n, e) == all.q(n, e));
          if (n >= 31 && n < length) CHECK(std::isnan(changed.q(n, e)));
        }
    }
}

TEST_CASE("streamed mixing: log q is exact if q underflows") {
  Mixing<double> m(2, 9, 9, 3, 4, false);
  for (Index n = 0; n < 9; ++n)
    for (Index e = 0; e < 4; ++e) {
      m.log_r(n, e) = e == n % 4 ? 0 : -1000.0 * static_cast<double>(e + 1) - static_cast<double>(n);
      m.r(n, e) = std::exp(m.log_r(n, e));
    }
  for (Index i = 0; i < m.queries.size(); ++i) m.queries.data()[i] *= 900;
  m.forward();
  Index underflowed = 0;
  for (Index i = 0; i < m.q.size(); ++i) underflowed += m.q.data()[i] == 0 && m.log_q.data()[i] < -800;
  REQUIRE(underflowed >= 3);
  check_against_loops(m);
}

TEST_CASE_TEMPLATE("streamed mixing: log q is exact if q almost underflows", T, float, double) {
  using Limits = std::numeric_limits<T>;
  const double least = std::log(double(Limits::min())), exact = least - std::log(double(Limits::epsilon()));
  const bool wide = std::is_same_v<T, double>;
  for (const bool small_weights : {false, true}) {
    CAPTURE(small_weights);
    // In each sequence of 68 items, the last 64 have a positive r of expert 1. Either the weights of these items are as
    // small as exp(level), or their r is.
    const Index rows = 68, steps = 24;
    Mixing<T> m(1, 2 * steps * rows, rows, 1, 3, false);
    m.scale = 1;
    for (Index n = 0; n < m.r.extent(0); ++n) {
      const bool knows = n % rows >= 4;
      const Index step = n / rows;
      const double level =
          (step < steps ? least : exact) - 6 + 0.5 * double(step % steps) - (small_weights ? std::log(8) : 0);
      const double apart = double(n % rows) / 64;
      m.queries(0, n, 0) = T(small_weights ? level : 1);
      m.keys(0, n, 0) = T(!small_weights ? apart : knows ? 1 + apart / 4096 : 0);
      for (Index e = 0; e < 3; ++e) m.r(n, e) = T(0.5);
      m.r(n, 1) = !knows ? T(0) : small_weights ? T(0.5) : T(std::exp(level + apart));
      for (Index e = 0; e < 3; ++e) m.log_r(n, e) = std::log(m.r(n, e));
      if (knows && !small_weights) m.log_r(n, 1) = T(level + apart);
    }
    m.forward();
    Index below = 0, between = 0, above = 0;
    for (Index i = 0; i < m.q.extent(0); ++i) {
      const auto log_q = naive_q(m, i, true);
      (log_q[1] < least ? below : log_q[1] < exact ? between : above) += 1;
      for (Index e = 0; e < 3; ++e)
        REQUIRE(double(m.log_q(i, e)) ==
                doctest::Approx(log_q[static_cast<std::size_t>(e)]).epsilon(wide ? 1e-13 : 1e-6));
    }
    CHECK(below >= 5 * rows);
    CHECK(between >= 20 * rows);
    CHECK(above >= 5 * rows);
  }
}

TEST_CASE_TEMPLATE("streamed mixing: the rank has a gradient unless q underflows", T, float, double) {
  using Limits = std::numeric_limits<T>;
  using Wide = long double;  // holds 1 / q and sums of it
  const Index length = 4;
  const std::vector<double> levels{-3, -1, -0.5, 0.5, 1, 3, 8, 15, 16, 17, 20, 35, 36, 37, 40, 60};  // above log min
  const Index items = length * static_cast<Index>(levels.size());
  Mixing<T> m(1, items, length, 2, 3, false);
  m.scale = 0.75;
  const T of_rank = T(1) / 128;
  Tensor<T, 2, Cpu> drank(items, 3), dq(items, 3), dr(items, 3);
  Tensor<T, 3, Cpu> dqueries(1, items, 2), dkeys(1, items, 2);
  for (auto* t : {&dqueries, &dkeys}) set_zero(m.ctx, *t);
  for (auto* t : {&drank, &dq}) set_zero(m.ctx, *t);
  for (Index n = 0; n < items; ++n) {
    const double level = std::log(double(Limits::min())) + levels[static_cast<std::size_t>(n / length)];
    m.r(n, 1) = T(std::exp(Wide(level)) * (1 + Wide(n % length) / 16));
    drank(n, 1) = of_rank;
  }
  m.refresh();
  m.forward();
  detail_::mixing::backward<Cpu::Context, T, Cpu>(m.ctx, m.heads(), m.scale, m.visible, m.r, m.q, m.log_sum_exp, drank,
                                                  dq, dr, {dqueries, dkeys});
  std::vector<Wide> of_r(static_cast<std::size_t>(items)), of_query(of_r),
      of_key(of_r);  // dr[:,1], and the first columns of the others
  for (Index i = 0; i < items; ++i) {
    const Index first = i / length * length;
    Wide w[4], total = 0, q = 0;
    for (Index j = 0; j < length; ++j) {
      Wide dot = 0;
      for (Index d = 0; d < 2; ++d) dot += Wide(m.queries(0, i, d)) * Wide(m.keys(0, first + j, d));
      total += w[j] = std::exp(Wide(m.scale) * dot);
    }
    for (Index j = 0; j < length; ++j) q += (w[j] /= total) * Wide(m.r(first + j, 1));
    const Wide g = q < Wide(Limits::min()) ? 0 : Wide(of_rank) / q;
    for (Index j = 0; j < length; ++j) {
      const Wide dscore = Wide(m.scale) * w[j] * g * (Wide(m.r(first + j, 1)) - q);
      of_r[static_cast<std::size_t>(first + j)] += w[j] * g;
      of_query[static_cast<std::size_t>(i)] += dscore * Wide(m.keys(0, first + j, 0));
      of_key[static_cast<std::size_t>(first + j)] += dscore * Wide(m.queries(0, i, 0));
    }
  }
  const Wide close = 64 * Wide(Limits::epsilon());
  Index without = 0;
  for (Index n = 0; n < items; ++n) {
    const auto at = static_cast<std::size_t>(n);
    CAPTURE(n);
    without += of_r[at] == 0;
    CHECK(std::abs(Wide(dr(n, 1)) - of_r[at]) <= close * of_r[at]);
    CHECK(std::abs(Wide(dqueries(0, n, 0)) - of_query[at]) <= close * Wide(of_rank));
    CHECK(std::abs(Wide(dkeys(0, n, 0)) - of_key[at]) <= close * Wide(of_rank));
  }
  CHECK(without == 3 * length);
}

TEST_CASE("streamed mixing: causal bits do not depend on later items") {
  const Index length = 300;
  Mixing<float> all(1, 2 * length, length, 5, 3, true, 2), changed(1, 2 * length, length, 5, 3, true, 2);
  all.forward();
  const Index last = 137;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (Index n = last + 1; n < 2 * length; ++n) {
    for (Index d = 0; d < 5; ++d) changed.keys(0, n, d) = changed.queries(0, n, d) = nan;
    for (Index e = 0; e < 3; ++e) changed.r(n, e) = changed.log_r(n, e) = nan;
  }
  changed.forward();
  for (Index n = 0; n <= last; ++n)
    for (Index e = 0; e < 3; ++e) {
      CHECK(changed.q(n, e) == all.q(n, e));
      CHECK(changed.log_q(n, e) == all.log_q(n, e));
    }
  CHECK(std::isnan(changed.q(last + 1, 0)));
}

TEST_CASE("streamed mixing: gradients of every input equal finite differences") {
  for (const Index width : {0, 3})
    for (const bool masked : {false, true})
      for (const bool causal : {false, true}) {
        if (width > 0 && !causal) continue;
        CAPTURE(causal);
        CAPTURE(masked);
        CAPTURE(width);
        Mixing<double> m(2, 10, 5, 3, 3, causal);
        if (width > 0) m.reach(width, masked);
        if (masked) m.hide({1, 0, 1, 1, 0, 0, 0, 0, 0, 0});
        const auto of_q = uniform_tensor<double>(m.ctx, Seed{7}, 1, 10, 3);
        const auto of_rank = uniform_tensor<double>(m.ctx, Seed{8}, 1, 10, 3);
        Tensor<double, 3, Cpu> dqueries(2, 10, 3), dkeys(2, 10, 3);
        Tensor<double, 2, Cpu> dr(10, 3), of_each = constant_tensor<double>(m.ctx, 0, 2 * width, 3);
        for (auto* t : {&dqueries, &dkeys}) set_zero(m.ctx, *t);
        m.forward();
        detail_::mixing::backward<Cpu::Context, double, Cpu>(m.ctx, m.heads(), m.scale, m.visible, m.r, m.q,
                                                             m.log_sum_exp, of_rank, of_q, dr,
                                                             {dqueries, dkeys, {}, of_each});
        auto dplaces = constant_tensor<double>(m.ctx, 0, width, 3);
        for (Index i = 0; i < of_each.size(); ++i) dplaces.data()[i % dplaces.size()] += of_each.data()[i];
        const auto loss = [&] {
          m.refresh();
          m.forward();
          double f = 0;
          for (Index i = 0; i < 30; ++i) f += m.q.data()[i] * of_q.data()[i] + m.log_q.data()[i] * of_rank.data()[i];
          return f;
        };
        const auto report = check::compare_gradients({{"queries", m.queries.data(), dqueries.data(), 60},
                                                      {"keys", m.keys.data(), dkeys.data(), 60},
                                                      {"places", m.places.data(), dplaces.data(), m.places.size()},
                                                      {"r", m.r.data(), dr.data(), 30}},
                                                     loss, [] { return std::uint64_t(0); }, {.of_largest = 1e-8});
        CHECK_MESSAGE(report, report.str());
      }
}

TEST_CASE("streamed mixing: gradients across blocks agree; threads change no bit") {
  const Index items = 600;
  std::vector<double> first;
  for (const int threads : {1, 2, 3, 8}) {
    Mixing<double> m(1, items, items, 2, 2, true, threads);
    Tensor<double, 3, Cpu> dqueries(1, items, 2), dkeys(1, items, 2);
    Tensor<double, 2, Cpu> dr(items, 2);
    for (auto* t : {&dqueries, &dkeys}) set_zero(m.ctx, *t);
    const auto of_q = uniform_tensor<double>(m.ctx, Seed{7}, 1, items, 2);
    m.forward();
    detail_::mixing::backward<Cpu::Context, double, Cpu>(m.ctx, m.heads(), m.scale, m.visible, m.r, m.q, m.log_sum_exp,
                                                         of_q, of_q, dr, {dqueries, dkeys});
    const auto all = values(m.q, m.log_q, dqueries, dkeys, dr);
    if (first.empty()) first = all;
    CHECK(same_bits(all, first));
    if (threads > 1) continue;
    // Compares the gradients of three values with difference quotients. Every block of rows sees key 5.
    const auto f = [&] {
      m.forward();
      double v = 0;
      for (Index i = 0; i < m.q.size(); ++i) v += (m.q.data()[i] + m.log_q.data()[i]) * of_q.data()[i];
      return v;
    };
    for (double* at : {&m.keys(0, 5, 1), &m.keys(0, 300, 0), &m.queries(0, 590, 0)}) {
      const double v = *at, h = 1e-5;
      *at = v + h;
      const double up = f();
      *at = v - h;
      const double down = f();
      *at = v;
      const double analytic = at == &m.keys(0, 5, 1)     ? dkeys(0, 5, 1)
                              : at == &m.keys(0, 300, 0) ? dkeys(0, 300, 0)
                                                         : dqueries(0, 590, 0);
      CHECK((up - down) / (2 * h) == doctest::Approx(analytic).epsilon(1e-8));  // error: h² and 2^-53 / h
    }
  }
}

namespace {

/// Items that each follow one of several heads (`one`), and an equivalent mixing without `Following` (`all`). `all` has
/// the features of all heads side by side, and its queries are 0 except for the followed head.
struct Followed {
  Mixing<double> one, all;  // one: queries [1, N, F] sorted by following.row, keys [1, heads · N, F]
  Tensor<Index, 1, Cpu> head;
  detail_::attending::Following<Cpu> following;

  Followed(Index h, Index n, Index length, Index width, bool causal, int threads = 1)
      : one(1, n, length, width, 3, causal, threads), all(1, n, length, h * width, 3, causal, threads), head(n) {
    for (Index i = 0; i < n; ++i) head(i) = (i * i + i / 7) % (h + 1) % h;
    following = detail_::attending::following<Cpu::Context>(one.ctx, View<const Index, 1, Cpu>(head), h, length);
    one.keys = Tensor<double, 3, Cpu>(1, h * n, width);
    for (Index i = 0; i < n; ++i)
      for (Index c = 0; c < h * width; ++c) {
        one.keys(0, following.key(i, c / width), c % width) = all.keys(0, i, c);
        if (c / width == head(i))
          one.queries(0, following.row(i), c % width) = all.queries(0, i, c);
        else
          all.queries(0, i, c) = 0;
      }
  }
  void forward() {
    detail_::mixing::forward<Cpu::Context, double, Cpu>(one.ctx, {one.queries, one.keys, following}, one.scale,
                                                        one.visible, one.r, one.log_r, one.q, one.log_q,
                                                        one.log_sum_exp);
  }
};

}  // namespace

TEST_CASE("streamed mixing: followed heads equal all heads computed together" * doctest::skip(support::slow_build)) {
  for (const bool causal : {false, true})
    for (const Index length : {1, 5, 100, 255, 256, 257, 300, 600})
      for (const bool masked : {false, true}) {
        CAPTURE(causal);
        CAPTURE(length);
        CAPTURE(masked);
        const Index items = 2 * length;
        Followed f(3, items, length, 2, causal);
        std::vector<double> mask;
        for (Index n = 0; n < items; ++n) mask.push_back(n % 5 == 1 || n % 7 == 3 ? 0 : 1);
        if (masked)
          for (auto* m : {&f.one, &f.all}) {
            m->hide(mask);
            m->visible.entropy = m->entropy;
          }
        for (auto* m : {&f.one, &f.all})  // so small that log q is summed pair by pair
          for (Index n = 0; n < items; ++n) m->r(n, 2) = 1e-310;
        for (auto* m : {&f.one, &f.all}) m->refresh();
        f.forward();
        f.all.forward();
        REQUIRE(difference(values(f.one.q), values(f.all.q)) <= 1e-13);
        for (Index n = 0; n < items; ++n) {
          const double got = f.one.log_sum_exp(n), expected = f.all.log_sum_exp(n);
          REQUIRE((got == expected || std::abs(got - expected) <= 1e-13));  // -infinity: the item sees no item
        }
        for (Index n = 0; n < f.one.log_q.size(); ++n)
          REQUIRE(f.one.log_q.data()[n] == doctest::Approx(f.all.log_q.data()[n]).epsilon(1e-12));

        Tensor<double, 3, Cpu> dqueries(1, items, 2), dkeys(1, 3 * items, 2), all_dqueries(1, items, 6),
            all_dkeys(1, items, 6);
        Tensor<double, 2, Cpu> dr(items, 3), all_dr(items, 3);
        for (auto* t : {&dqueries, &dkeys, &all_dqueries, &all_dkeys}) set_zero(f.one.ctx, *t);
        const auto of_q = uniform_tensor<double>(f.one.ctx, Seed{7}, 1, items, 3);
        auto of_rank = uniform_tensor<double>(f.one.ctx, Seed{8}, 1, items, 3);
        for (Index n = 0; n < items; ++n) of_rank(n, 2) = 0;
        detail_::mixing::backward<Cpu::Context, double, Cpu>(
            f.one.ctx, {f.one.queries, f.one.keys, f.following}, f.one.scale, f.one.visible, f.one.r, f.one.q,
            f.one.log_sum_exp, of_rank, of_q, dr, {dqueries, dkeys, f.following});
        detail_::mixing::backward<Cpu::Context, double, Cpu>(f.all.ctx, f.all.heads(), f.all.scale, f.all.visible,
                                                             f.all.r, f.all.q, f.all.log_sum_exp, of_rank, of_q, all_dr,
                                                             {all_dqueries, all_dkeys});
        REQUIRE(difference(values(dr), values(all_dr)) <= 1e-11);
        for (Index n = 0; n < items; ++n)
          for (Index h = 0; h < 3; ++h)
            for (Index d = 0; d < 2; ++d) {
              REQUIRE(dkeys(0, f.following.key(n, h), d) == doctest::Approx(all_dkeys(0, n, 2 * h + d)).epsilon(1e-9));
              if (h == f.head(n))
                REQUIRE(dqueries(0, f.following.row(n), d) ==
                        doctest::Approx(all_dqueries(0, n, 2 * h + d)).epsilon(1e-9));
            }
      }
}

TEST_CASE("streamed mixing: an empty batch has no blocks") {
  Mixing<double> m(1, 0, 1, 2, 3, true);
  m.forward();
  CHECK(m.q.size() == 0);
}
