#include "gatefold/backend/cpu/outer.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/tensor/tensor.hpp"
#include "support/larger.hpp"
#include "support/naive.hpp"
#include "support/slow_build.hpp"

using namespace gatefold;

namespace {

template <class T>
using Vector = std::vector<T>;
using Size = std::size_t;

/// The factors of c[e] += a[rows of e]ᵀ b[slots of e].
template <class T>
struct OuterCase {
  naive::Slots slots;
  Index items, rows, columns;
  Vector<T> a, b, before;

  OuterCase(const Vector<Index>& counts, Index rows_, Index columns_)
      : slots(counts, 23, 11),
        items(23),
        rows(rows_),
        columns(columns_),
        a(naive::random_vector<T>(items * rows, 1)),
        b(naive::random_vector<T>(slots.count() * columns, 2)),
        before(naive::random_vector<T>(slots.experts() * rows * columns, 3)) {}

  cpu::Batch<T> batch(T* c, bool accumulate = true) const {
    return {.all = {.a = {a.data(), rows, false, slots.rows.data()},
                    .b = {b.data(), columns, false},
                    .c = c,
                    .c_stride = columns,
                    .rows = rows,
                    .columns = columns,
                    .depth = slots.count() / slots.experts(),
                    .first = 0},
            .slots = cpu::Batch<T>::Slots::are_depth,
            .offsets = slots.offsets.data(),
            .experts = slots.experts(),
            .accumulate = accumulate};
  }
  Vector<T> run(int threads, bool straight) const {
    Cpu::Context ctx(threads, true);
    Vector<T> c = before;
    static constexpr functor::Store store{};
    if (straight)
      cpu::Product<T>::run(ctx, batch(c.data()), cpu::Epilogue<T>::with(store));
    else
      cpu::outer(ctx, batch(c.data()), View<T, 3, Cpu>(c.data(), slots.experts(), rows, columns));
    return c;
  }
};

/// Does what functor::Store does, under another name.
struct Same {
  template <class A, class V>
  V operator()(const A&, Index, Index, Index, V v) const {
    return v;
  }
};

}  // namespace

TEST_CASE_TEMPLATE("grouped_outer: narrow shapes have the bits of the direct product", T, float, double) {
  const Index shapes[][2] = {{1, 1}, {50, 8}, {50, 1}, {65, 16}, {300, 3}, {8, 50}, {33, 33}, {64, 17}, {0, 4}, {4, 0}};
  for (const auto& counts : Vector<Vector<Index>>{{0}, {1}, {5, 0, 1, 30}, {600, 0, 2}})
    for (const auto& shape : shapes) {
      const Index rows = shape[0], columns = shape[1];
      CAPTURE(rows);
      CAPTURE(columns);
      const OuterCase<T> of(counts, rows, columns);
      const Vector<T> straight = of.run(1, true);
      for (const int threads : {1, 3}) {
        const Vector<T> c = of.run(threads, false);
        CHECK((c.empty() || std::memcmp(c.data(), straight.data(), c.size() * sizeof(T)) == 0));
      }
      double worst = 0;
      for (Index e = 0; e < of.slots.experts(); ++e)
        for (Index i = 0; i < rows; ++i)
          for (Index j = 0; j < columns; ++j) {
            const Size at = static_cast<Size>((e * rows + i) * columns + j);
            double sum = static_cast<double>(of.before[at]);
            for (Index s = of.slots.offsets[static_cast<Size>(e)]; s < of.slots.offsets[static_cast<Size>(e) + 1]; ++s)
              sum += static_cast<double>(of.a[static_cast<Size>(of.slots.rows[static_cast<Size>(s)] * rows + i)]) *
                     static_cast<double>(of.b[static_cast<Size>(s * columns + j)]);
            worst = support::larger(worst, std::abs(sum - static_cast<double>(straight[at])));
          }
      CHECK(worst <= 1e3 * static_cast<double>(std::numeric_limits<T>::epsilon()));
    }
}

TEST_CASE_TEMPLATE("grouped_outer: direct stores and epilogues give equal bits" * doctest::skip(support::slow_build), T,
                   float, double) {
  const Index shapes[][2] = {{1, 1}, {5, 517}, {40, 31}, {171, 64}, {30, 200}};
  const Vector<Index> counts{1, 2, 0, 7, 16, 31, 32, 33, 300, 600};
  for (const auto& shape : shapes)
    for (const bool accumulate : {false, true})
      for (const int threads : {1, 2}) {
        const Index rows = shape[0], columns = shape[1];
        CAPTURE(rows);
        CAPTURE(columns);
        const OuterCase<T> of(counts, rows, columns);
        Cpu::Context ctx(threads, true);
        Vector<T> stored = of.before, finished = of.before;
        static constexpr functor::Store store{};
        static constexpr Same same{};
        cpu::Product<T>::run(ctx, of.batch(stored.data(), accumulate), cpu::Epilogue<T>::with(store));
        cpu::Product<T>::run(ctx, of.batch(finished.data(), accumulate), cpu::Epilogue<T>::with(same));
        CHECK(std::memcmp(stored.data(), finished.data(), stored.size() * sizeof(T)) == 0);
      }
}

TEST_CASE_TEMPLATE("grouped_outer: gathered rows have the bits of rows in order", T, float, double) {
  const Index shapes[][2] = {{1, 1}, {5, 517}, {50, 8}, {171, 64}, {300, 3}};  // some are computed transposed
  for (const auto& counts : Vector<Vector<Index>>{{0}, {1, 2, 0, 16, 33, 300}, {0, 4500, 0}})
    for (const auto& shape : shapes)
      for (const int threads : {1, 3}) {
        const Index rows = shape[0], columns = shape[1];
        CAPTURE(rows);
        const OuterCase<T> of(counts, rows, columns);
        const Index slots = of.slots.count();
        Cpu::Context ctx(threads, true);
        // Row (7 s) mod slots of the matrix belongs to slot s.
        Vector<Index> at;
        Vector<T> in_order;
        for (Index s = 0; s < slots; ++s) {
          at.push_back(7 * s % slots);
          const auto row = of.b.begin() + at.back() * columns;
          in_order.insert(in_order.end(), row, row + columns);
        }
        const auto run = [&](const Vector<T>& b, View<const Index, 1, Cpu> b_rows) {
          Vector<T> c = of.before;
          Cpu::grouped_outer<T>(ctx, {of.slots.offsets, of.slots.rows, slots}, {of.a.data(), of.items, rows},
                                {b.data(), slots, columns}, {c.data(), of.slots.experts(), rows, columns}, true,
                                b_rows);
          return c;
        };
        CHECK(run(of.b, at) == run(in_order, {}));
      }
}

TEST_CASE_TEMPLATE("transposes_outer: narrow gradients of many rows are transposed", T, float, double) {
  const Index size = cpu::Tile<T>::size, few = std::max<Index>(size / 8, 1);
  CHECK(cpu::transposes_outer<T>(50 * size, few, 1000, true, 1));
  CHECK(cpu::transposes_outer<T>(50, 1, 600, true, 1));
  CHECK(!cpu::transposes_outer<T>(50 * size, few, 0, true, 1));  // depth 0: transposing c does not pay
  CHECK(!cpu::transposes_outer<T>(512, 2048, 1000, true, 1));
  CHECK(!cpu::transposes_outer<T>(64, 64, 1000, false, 1));
  CHECK(!cpu::transposes_outer<T>(50 * size, few, 1000, true, 1 << 20));  // more threads than there is work for
}

TEST_CASE_TEMPLATE("gemm: narrow products overwrite or add, also with depth 0", T, float, double) {
  const Index rows = 70, columns = 5;
  for (const Index depth : {0, 1, 300})
    for (const bool accumulate : {false, true}) {
      Cpu::Context ctx(2, true);
      const auto a = naive::random_vector<T>(depth * rows, 4), b = naive::random_vector<T>(depth * columns, 5),
                 before = naive::random_vector<T>(rows * columns, 6);
      Vector<T> c = before;
      Cpu::gemm<T>(ctx, {a.data(), depth, rows}, true, {b.data(), depth, columns}, false, accumulate,
                   {c.data(), rows, columns}, functor::Store{});
      double worst = 0;
      for (Index i = 0; i < rows; ++i)
        for (Index j = 0; j < columns; ++j) {
          const Size at = static_cast<Size>(i * columns + j);
          const double sum = naive::dot<T>({a.data(), rows, true}, i, {b.data(), columns, false}, j, depth);
          worst = support::larger(
              worst, std::abs(sum + (accumulate ? static_cast<double>(before[at]) : 0) - static_cast<double>(c[at])));
        }
      CHECK(worst <= 1e3 * static_cast<double>(std::numeric_limits<T>::epsilon()));
    }
}

TEST_CASE_TEMPLATE("grouped_outer: storing equals adding to zeros, also for empty experts" *
                       doctest::skip(support::slow_build),
                   T, float, double) {
  const Index shapes[][2] = {{5, 517}, {50, 8}, {171, 64}, {300, 3}};  // some are computed transposed
  for (const auto& counts : Vector<Vector<Index>>{{0, 0}, {1, 2, 0, 16, 33, 300}, {0, 4500, 0}})
    for (const auto& shape : shapes)
      for (const int threads : {1, 3}) {
        const Index rows = shape[0], columns = shape[1];
        CAPTURE(rows);
        const OuterCase<T> of(counts, rows, columns);
        Vector<T> added(of.before.size(), T(0)), stored(of.before.size(), std::numeric_limits<T>::quiet_NaN());
        Cpu::Context ctx(threads, true);
        const Groups<Cpu> groups{of.slots.offsets, of.slots.rows, of.slots.count()};
        const View<const T, 2, Cpu> a(of.a.data(), of.items, rows), b(of.b.data(), of.slots.count(), columns);
        const auto view = [&](Vector<T>& c) { return View<T, 3, Cpu>(c.data(), of.slots.experts(), rows, columns); };
        Cpu::grouped_outer(ctx, groups, a, b, view(added));
        Cpu::grouped_outer(ctx, groups, a, b, view(stored), false);
        CHECK(stored == added);
      }
}

TEST_CASE_TEMPLATE("grouped_outer: non-temporal stores equal adding to zeros", T, float, double) {
  constexpr Index rows = 512, columns = cpu::tuning.streamed_size / 4 / rows;
  const OuterCase<T> of({5, 0, 40, 257}, rows, columns);  // a rank update, no slots, one block of the depth, two blocks
  const Groups<Cpu> groups{of.slots.offsets, of.slots.rows, of.slots.count()};
  const View<const T, 2, Cpu> a(of.a.data(), of.items, rows), b(of.b.data(), of.slots.count(), columns);
  for (const int threads : {1, 2}) {
    Cpu::Context ctx(threads, true);
    Tensor<T, 3, Cpu> added(4, rows, columns), stored(4, rows, columns);
    std::fill_n(added.data(), added.size(), T(0));
    std::fill_n(stored.data(), stored.size(), std::numeric_limits<T>::quiet_NaN());
    Cpu::grouped_outer(ctx, groups, a, b, added.view());
    Cpu::grouped_outer(ctx, groups, a, b, stored.view(), false);
    CHECK(std::equal(added.data(), added.data() + added.size(), stored.data()));

    cpu::Batch<T> batch = of.batch(stored.data(), false);
    const cpu::ProductSchedule<T> schedule(batch, true, threads);
    CHECK(schedule.streams(batch[0]));
    CHECK(schedule.streams(batch[1]));
    CHECK(schedule.streams(batch[2]));
    CHECK_FALSE(schedule.streams(batch[3]));
    batch.stays_cached = true;
    CHECK_FALSE(schedule.streams(batch[0]));
  }
}
