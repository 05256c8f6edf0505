#include "gatefold/attention/streamed_softmax.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/backend/initial_values.hpp"
#include "gatefold/check/gradient.hpp"
#include "support/pass.hpp"
#include "support/slow_build.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

/// The keys that an item sees.
struct Reach {
  bool causal;
  Index window = 0;  // 0: none
  bool itself = true;
};

/// The softmax of each query over the keys that it sees, and the weighted sums of the values.
template <class T>
struct Weighted {
  Cpu::Context ctx;
  Index length;
  bool causal;
  Tensor<T, 2, Cpu> queries, keys, values;  // [N, F], [N, F], [N, E]
  detail_::attending::Window window{};      // selects the visible keys, if its width is not 0
  Tensor<T, 2, Cpu> places;                 // [width, F]; empty: none
  std::vector<T> valid;
  std::vector<Index> offsets;  // slots of `length` items that are in use; empty: all
  std::vector<T> top, total, scored;
  Tensor<T, 2, Cpu> sums;
  double scale = 0.7;

  Weighted(Index items, Index of, bool is_causal, int threads = 1)
      : ctx(threads),
        length(of),
        causal(is_causal),
        queries(uniform_tensor<T>(ctx, Seed{1}, 2, items, 5)),
        keys(uniform_tensor<T>(ctx, Seed{2}, 2, items, 5)),
        values(uniform_tensor<T>(ctx, Seed{3}, 1, items, 3)),
        sums(items, 3) {}
  detail_::attending::Mask<T, Cpu> mask(const detail_::attending::Keys<T, Cpu>& clean) const {
    detail_::attending::Mask<T, Cpu> m{length, causal, clean.mask};
    if (!offsets.empty()) m.in_use = {offsets, length};
    m.window = window;
    return m;
  }
  detail_::attending::Keys<T, Cpu> clean() {
    return {ctx, valid.empty() ? View<const T, 1, Cpu>{} : View<const T, 1, Cpu>(valid), values.view()};
  }
  void forward() {
    auto mark = ctx.mark();
    const auto of = clean();
    const detail_::attending::Sums<T, Cpu> to(ctx, sums.view(), true);
    detail_::attending::add_keys<Cpu::Context, T, Cpu>(ctx, queries, keys, scale, mask(of), of.values, to,
                                                       {places.view()});
    const auto copied = [](View<T, 1, Cpu> v) { return std::vector<T>(v.data(), v.data() + v.size()); };
    top = copied(to.top);
    total = copied(to.total);
    scored = copied(to.scored);
  }
  bool sees(Index i, Index j) const {
    return i / length == j / length && (window.width > 0 ? window.sees(i % length, j % length) : !causal || j <= i) &&
           (valid.empty() || valid[std::size_t(j)] != 0);
  }
  double score(Index i, Index j) const {
    double dot = 0;
    const Index place = j - i + window.width - (window.itself ? 1 : 0);
    for (Index d = 0; d < queries.extent(1); ++d)
      dot += double(queries(i, d)) * (double(keys(j, d)) + (places.size() > 0 ? double(places(place, d)) : 0));
    return scale * dot;
  }
  /// Returns log Σ_j w[i,j], or −∞ if i sees no key.
  double log_sum_exp(Index i) const {
    double most = -infinity, sum = 0;
    for (Index j = 0; j < queries.extent(0); ++j)
      if (sees(i, j)) most = std::max(most, score(i, j));
    for (Index j = 0; j < queries.extent(0); ++j)
      if (sees(i, j)) sum += std::exp(score(i, j) - most);
    return most + std::log(sum);
  }
};

}  // namespace

TEST_CASE("streamed softmax (1), (2): mean, log-sum-exp, entropy equal loops") {
  for (const Reach& reach :
       {Reach{false}, Reach{true}, Reach{true, 2}, Reach{true, 2, false}, Reach{true, 200}, Reach{true, 700, false}})
    for (const Index length : {1, 3, 40, 128, 129, 600})
      for (const bool padded : {false, true}) {
        CAPTURE(reach.causal);
        CAPTURE(reach.window);
        CAPTURE(length);
        CAPTURE(padded);
        Weighted<double> w(length < 600 ? 2 * length : length, length, reach.causal);
        if (reach.window > 0) {
          w.window = {length, 0, reach.window, reach.itself};
          w.places = uniform_tensor<double>(w.ctx, Seed{8}, 1, reach.window, 5);
        }
        for (Index n = 0; padded && n < w.sums.extent(0); ++n) w.valid.push_back(n % 3 == 1 || n % 7 < 2 ? 0 : 1);
        w.forward();
        for (Index i = 0; i<w.sums.extent(0); i += length> 100 ? 7 : 1) {
          const double normaliser = w.log_sum_exp(i);
          const auto at = std::size_t(i);
          if (normaliser == -infinity) {
            REQUIRE(w.total[at] == 0);
            continue;
          }
          REQUIRE(w.scale * w.top[at] + std::log(w.total[at]) == doctest::Approx(normaliser).epsilon(1e-12));
          double entropy = 0;
          std::vector<double> mean(3, 0.0);
          for (Index j = 0; j < w.sums.extent(0); ++j) {
            if (!w.sees(i, j)) continue;
            const double a = std::exp(w.score(i, j) - normaliser);
            entropy -= a * std::log(a);
            for (Index e = 0; e < 3; ++e) mean[std::size_t(e)] += a * w.values(j, e);
          }
          for (Index e = 0; e < 3; ++e) REQUIRE(std::abs(w.sums(i, e) / w.total[at] - mean[std::size_t(e)]) <= 1e-13);
          REQUIRE(std::abs(std::log(w.total[at]) - w.scored[at] / w.total[at] - entropy) <= 1e-12);
        }
      }
}

TEST_CASE("streamed softmax: NaN reaches only rows that see its key") {
  for (const bool causal : {false, true})
    for (const Index length : {6, 300}) {
      Weighted<float> clean(2 * length, length, causal), changed(2 * length, length, causal);
      changed.keys(3, 1) = std::numeric_limits<float>::quiet_NaN();
      changed.values(4, 2) = std::numeric_limits<float>::infinity();
      clean.forward();
      changed.forward();
      for (Index i = 0; i < 2 * length; ++i)
        for (Index e = 0; e < 3; ++e) {
          if (changed.sees(i, 3) || changed.sees(i, 4))
            REQUIRE(std::isnan(changed.sums(i, e) / changed.total[std::size_t(i)]));
          else
            REQUIRE(changed.sums(i, e) == clean.sums(i, e));
        }
    }
}

TEST_CASE("streamed softmax: unused rows stay untouched") {
  Weighted<double> all(30, 5, true), part(30, 5, true);
  part.offsets = {1, 1, 4};
  for (Index i = 0; i < 30; ++i)
    if (i < 5 || i >= 20)
      for (auto* t : {&part.queries, &part.keys, &part.values})
        for (Index c = 0; c < t->extent(1); ++c) (*t)(i, c) = quiet_nan;
  all.forward();
  part.forward();
  for (Index i = 0; i < 30; ++i)
    for (Index e = 0; e < 3; ++e) CHECK(part.sums(i, e) == (i < 5 || i >= 20 ? 0 : all.sums(i, e)));
}

TEST_CASE("streamed softmax: gradients equal finite differences on any threads") {
  for (const Reach& reach : {Reach{false}, Reach{true}, Reach{true, 3}, Reach{true, 140, false}})
    for (const Index length : {4, 150}) {
      CAPTURE(reach.causal);
      CAPTURE(reach.window);
      CAPTURE(length);
      std::vector<double> first;
      for (const int threads : {1, 2, 3}) {
        Weighted<double> w(length == 4 ? 8 : length, length, reach.causal, threads);
        const Index items = w.sums.extent(0);
        if (length == 4) w.valid = {1, 1, 0, 1, 1, 1, 1, 1};
        if (reach.window > 0) {
          w.window = {length, 0, reach.window, reach.itself};
          w.places = uniform_tensor<double>(w.ctx, Seed{8}, 1, reach.window, 5);
        }
        const auto dy = uniform_tensor<double>(w.ctx, Seed{4}, 1, items, 3);
        const auto loss = [&] {
          w.forward();
          double f = 0;
          for (Index i = 0; i < items; ++i)
            for (Index e = 0; e < 3; ++e)
              if (w.total[std::size_t(i)] > 0) f += w.sums(i, e) / w.total[std::size_t(i)] * dy(i, e);
          return f;
        };
        (void)loss();
        std::vector<double> normaliser, mean;
        for (Index i = 0; i < items; ++i) {
          const auto at = std::size_t(i);
          normaliser.push_back(w.scale * w.top[at] + std::log(w.total[at]));
          mean.push_back(0);
          for (Index e = 0; e < 3 && w.total[at] > 0; ++e) mean[at] += dy(i, e) * w.sums(i, e) / w.total[at];
        }
        Tensor<double, 2, Cpu> dq(items, 5), dk(items, 5), dv(items, 3), of_each(items / length * reach.window, 5);
        for (auto* t : {&dq, &dk, &dv, &of_each}) set_zero(w.ctx, *t);
        {
          auto mark = w.ctx.mark();
          const auto of = w.clean();
          detail_::attending::add_keys_backward<Cpu::Context, double, Cpu>(
              w.ctx, w.queries, w.keys, w.scale, w.mask(of), of.values, View<const double, 1, Cpu>(normaliser),
              View<const double, 1, Cpu>(mean), dy, dv, dq, dk, {w.places.view(), of_each.view()});
        }
        const auto all = values(dq, dk, dv, of_each);
        if (first.empty()) first = all;
        CHECK(same_bits(all, first));
        if (threads > 1) continue;
        Tensor<double, 2, Cpu> dplaces = constant_tensor<double>(w.ctx, 0, reach.window, 5);
        for (Index i = 0; i < of_each.size(); ++i) dplaces.data()[i % dplaces.size()] += of_each.data()[i];
        const Index of_places = std::min<Index>(reach.window, support::slow_build ? 1 : 8);
        // Checks the last queries, because the first ones see at most one key and have no gradient.
        const Index some = std::min<Index>(items, support::slow_build ? 1 : 8), last = (items - some) * 5;
        const auto report = check::compare_gradients({{"queries", w.queries.data() + last, dq.data() + last, some * 5},
                                                      {"keys", w.keys.data(), dk.data(), some * 5},
                                                      {"values", w.values.data(), dv.data(), some * 3},
                                                      {"places", w.places.data() + (reach.window - of_places) * 5,
                                                       dplaces.data() + (reach.window - of_places) * 5, of_places * 5}},
                                                     loss, [] { return std::uint64_t(0); }, {.of_largest = 1e-8});
        CHECK_MESSAGE(report, report.str());
      }
    }
}
