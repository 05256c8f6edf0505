#include "gatefold/backend/cpu/loops.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <numeric>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "support/larger.hpp"
#include "support/naive.hpp"

using namespace gatefold;

TEST_CASE("for_each, for_rows: visit every index once") {
  for (const int threads : {1, 2, 3, 8}) {
    Cpu::Context ctx(threads);
    for (const Index n : {0, 1, 63, 64, 65, 1000, 16384, 100001}) {
      std::vector<int> each(static_cast<std::size_t>(n)), rows = each;
      int *p = each.data(), *q = rows.data();
      Cpu::for_each(ctx, n, [=](Index i) { ++p[i]; });
      Cpu::for_rows(ctx, n, [=](const auto& lanes, Index i) { q[i] += lanes.size; });
      CHECK(std::count(each.begin(), each.end(), 1) == n);
      CHECK(std::count(rows.begin(), rows.end(), 1) == n);
    }
  }
}

TEST_CASE("for_each, for_rows, reduce: share work only if pays() is true") {
  struct Counting {
    bool answer = false;
    int calls = 0, questions = 0;
    void run(int count, cpu::WorkerFunction f) {
      ++calls;
      for (int worker = count - 1; worker >= 0; --worker) f(worker);
    }
    bool pays(double) {
      ++questions;
      return answer;
    }
  } executor;
  for (const int threads : {2, 3}) {
    Cpu::Context ctx(executor, threads), alone(1);
    for (const Index n : {6, 64, 1000, 16384, 100001}) {
      const auto x = naive::random_vector<float>(n, 5);
      const auto results = [&](Cpu::Context& by) {
        std::vector<float> all(static_cast<std::size_t>(2 * n + 1));
        float *p = all.data(), *q = p + n;
        const float* from = x.data();
        Cpu::for_each(by, n, [=](Index i) { p[i] = from[i] * from[i] + 1; });
        Cpu::for_rows(by, n, [=](const auto&, Index i) { q[i] = from[i] * 3 - 1; });
        Cpu::reduce<float>(
            by, n, [=](Index i) { return from[i]; }, q + n);
        return all;
      };
      const auto expected = results(alone);
      for (const bool answer : {false, true}) {
        executor = {answer};
        CHECK(results(ctx) == expected);
        const int loops = n >= 16384 ? 3 : 1;  // only these loops are long enough to be timed
        CHECK(executor.questions == loops);
        CHECK(executor.calls == (answer ? loops : 0));
      }
    }
  }
}

namespace {

/// Computes y = 2 x + 1 on registers.
struct TwicePlusOne {
  using Element = float;
  const float* x;
  float* y;
  template <class A>
  void operator()(const A& at, Index i) const {
    at.store(y + i, at.load(x + i) * 2.0f + 1.0f);
  }
};

}  // namespace

TEST_CASE("for_each: runs a functor of Element on whole registers") {
  for (const int threads : {1, 3})
    for (const Index n : {0, 1, 15, 16, 17, 1000, 40001}) {
      Cpu::Context ctx(threads, true);
      const auto x = naive::random_vector<float>(n, 4);
      std::vector<float> y(static_cast<std::size_t>(n) + 1, 7.0f);
      Cpu::for_each(ctx, n, TwicePlusOne{x.data(), y.data()});
      for (std::size_t i = 0; i < x.size(); ++i) REQUIRE(y[i] == 2 * x[i] + 1);
      CHECK(y.back() == 7);
    }
}

TEST_CASE_TEMPLATE("reduce: adds to its output, any threads give equal bits", T, float, double) {
  for (const Index n : {0, 1, 100, 4096, 4097, 50000, 400001}) {
    const auto x = naive::random_vector<T>(n, 6);
    const double exact = std::accumulate(x.begin(), x.end(), 0.0);
    T first = 0;
    for (const int threads : {1, 2, 3, 8}) {
      Cpu::Context ctx(threads);
      T sum = 2;
      Cpu::reduce<T>(
          ctx, n, [p = x.data()](Index i) { return p[i]; }, &sum);
      CHECK(std::abs(static_cast<double>(sum) - exact - 2) <=
            static_cast<double>(8 + n) * std::numeric_limits<T>::epsilon());
      if (threads == 1) first = sum;
      CHECK(std::memcmp(&sum, &first, sizeof(T)) == 0);
    }
  }
}

TEST_CASE_TEMPLATE("reduce: sums blocks of 4096 in order, then their sums", T, float, double) {
  const Index n = 400'001;
  const auto x = naive::random_vector<T>(n, 6);
  T expected = 0;
  for (Index begin = 0; begin < n; begin += 4096) {
    T block = 0;
    for (Index i = begin; i < std::min<Index>(n, begin + 4096); ++i) block += x[static_cast<std::size_t>(i)];
    expected += block;
  }
  Cpu::Context ctx(2);
  T sum = 0;
  Cpu::reduce<T>(
      ctx, n, [p = x.data()](Index i) { return p[i]; }, &sum);
  CHECK(sum == expected);
}

TEST_CASE("group_by: is a stable sort, skips negative keys") {
  for (const int threads : {1, 2, 3, 8}) {
    Cpu::Context ctx(threads);
    for (const Index groups : {0, 1, 3, 64, 257})
      for (const Index n : {0, 1, 10, 5000, 100003}) {
        std::vector<Index> keys, expected, offsets(static_cast<std::size_t>(groups) + 1, -5);
        std::vector<Index> counts(static_cast<std::size_t>(groups));
        for (Index i = 0; i < n; ++i)
          keys.push_back(static_cast<Index>(mix64(static_cast<std::uint64_t>(i)) % (groups + 1)) - 1);
        for (Index i = 0; i < n; ++i) {
          const Index key = keys[static_cast<std::size_t>(i)];
          if (key < 0) continue;
          expected.push_back(i);
          ++counts[static_cast<std::size_t>(key)];
        }
        std::stable_sort(expected.begin(), expected.end(), [&](Index a, Index b) {
          return keys[static_cast<std::size_t>(a)] < keys[static_cast<std::size_t>(b)];
        });
        std::vector<Index> order(static_cast<std::size_t>(n), -1);
        Cpu::group_by(ctx, keys, offsets, order);
        const auto count = static_cast<std::size_t>(offsets.back());
        REQUIRE(count == expected.size());
        CHECK(std::equal(expected.begin(), expected.end(), order.begin()));
        CHECK(std::all_of(order.begin() + offsets.back(), order.end(), [](Index i) { return i == -1; }));
        for (Index g = 0; g < groups; ++g)
          CHECK(offsets[static_cast<std::size_t>(g) + 1] - offsets[static_cast<std::size_t>(g)] ==
                counts[static_cast<std::size_t>(g)]);
        CHECK(offsets[0] == 0);
      }
  }
}

TEST_CASE_TEMPLATE("grouped_sum: adds or stores sums of weighted and gathered rows", T, float, double) {
  Cpu::Context ctx(2);
  const std::vector<Index> counts{3, 0, 700, 1, 0};
  const naive::Slots slots(counts, 40, 7);
  const Index count = slots.count(), experts = slots.experts();
  const auto weight = naive::random_vector<T>(count, 1);
  for (const Index columns : {1, 5, 131}) {
    const auto items = naive::random_vector<T>(40 * columns, 8);
    std::vector<T> rows, terms;
    for (Index s = 0; s < count; ++s)
      for (Index j = 0; j < columns; ++j) {
        rows.push_back(items[static_cast<std::size_t>(slots.rows[static_cast<std::size_t>(s)] * columns + j)]);
        terms.push_back(weight[static_cast<std::size_t>(s)] * rows.back());
      }
    const Groups<Cpu> groups{slots.offsets, {}, count};
    const auto sums = [&](const std::vector<T>& dc, bool accumulate, View<const Index, 1, Cpu> of,
                          View<const T, 1, Cpu> w) {
      std::vector<T> db(static_cast<std::size_t>(experts * columns),
                        accumulate ? T(0) : std::numeric_limits<T>::quiet_NaN());
      Cpu::grouped_sum<T>(ctx, groups, {dc.data(), static_cast<Index>(dc.size()) / columns, columns},
                          {db.data(), experts, columns}, accumulate, of, w);
      return db;
    };
    const auto gathered = sums(items, true, slots.rows, {});
    CHECK(gathered == sums(rows, true, {}, {}));
    CHECK(gathered == sums(items, false, slots.rows, {}));
    const auto weighted = sums(items, false, slots.rows, weight), expected = sums(terms, true, {}, {});
    double worst = 0;  // a product may be rounded before it is added, or not
    for (std::size_t i = 0; i < weighted.size(); ++i)
      worst = support::larger(worst, std::abs(static_cast<double>(weighted[i] - expected[i])));
    CHECK(worst <= 1e3 * static_cast<double>(std::numeric_limits<T>::epsilon()));
  }
}

TEST_CASE_TEMPLATE("grouped_sum: equals a loop, same bits for any threads", T, float, double) {
  for (const Index columns : {0, 1, 5, 64, 131}) {
    const std::vector<Index> counts{3, 0, 700, 1, 0, 1500};
    const naive::Slots slots(counts, 1, 7);
    // Rows past offsets[E] hold NaN and are not read.
    auto dc = naive::random_vector<T>((slots.count() + 2) * columns, 8);
    std::fill(dc.end() - 2 * columns, dc.end(), std::numeric_limits<T>::quiet_NaN());
    const auto before = naive::random_vector<T>(slots.experts() * columns, 9);
    std::vector<T> first;
    for (const int threads : {1, 2, 8}) {
      Cpu::Context ctx(threads);
      std::vector<T> db = before;
      const Groups<Cpu> groups{slots.offsets, {}, slots.count() + 2};
      Cpu::grouped_sum<T>(ctx, groups, {dc.data(), slots.count() + 2, columns}, {db.data(), slots.experts(), columns});
      double worst = 0;
      for (Index e = 0; e < slots.experts(); ++e)
        for (Index j = 0; j < columns; ++j) {
          double sum = static_cast<double>(before[static_cast<std::size_t>(e * columns + j)]);
          for (Index s = slots.offsets[static_cast<std::size_t>(e)]; s < slots.offsets[static_cast<std::size_t>(e) + 1];
               ++s)
            sum += static_cast<double>(dc[static_cast<std::size_t>(s * columns + j)]);
          const double error = std::abs(sum - static_cast<double>(db[static_cast<std::size_t>(e * columns + j)]));
          worst = error <= worst ? worst : error;
        }
      CHECK(worst <= 1e3 * std::numeric_limits<T>::epsilon());
      if (threads == 1) first = db;
      CHECK(first == db);
    }
  }
}
