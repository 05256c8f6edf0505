#include "gatefold/backend/cpu/few_rows.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/backend/epilogue.hpp"
#include "support/naive.hpp"

using namespace gatefold;
using cpu::Batch;
using cpu::Epilogue;
using cpu::FewRows;

namespace {

/// Returns the sum of products of two lines of numbers in the order of Product: chains of multiply-adds over at most
/// Tile::depth terms (tile.hpp, eq. (1)), whose results are added in order.
template <class T, class A, class B>
T chained(Index depth, const A& a, const B& b) {
  using V = cpu::Register<T>;
  T total = 0;
  for (Index k = 0; k < depth; k += cpu::Tile<T>::depth) {
    V s(T(0));
    for (Index i = k; i < std::min(depth, k + cpu::Tile<T>::depth); ++i) s = madd(V(a(i)), V(b(i)), s);
    T lanes[V::size];
    s.store(lanes);
    total = k == 0 ? lanes[0] : total + lanes[0];
  }
  return total;
}

/// Random products of experts with the given numbers of rows. Rows of A are gathered.
template <class T>
struct RandomBatch {
  Index depth, columns;
  bool lines_are_rows;
  naive::Slots slots;
  std::vector<T> a, b, c;
  static constexpr Index items = 5;

  RandomBatch(const std::vector<Index>& counts, Index depth_, Index columns_, bool lines_are_rows_)
      : depth(depth_),
        columns(columns_),
        lines_are_rows(lines_are_rows_),
        slots(counts, items, 1),
        a(naive::random_vector<T>(items * depth, 2)),
        b(naive::random_vector<T>(slots.experts() * depth * columns, 3)),
        c(std::size_t((slots.count() + 1) * (columns + 1)), T(7)) {}
  Batch<T> batch() {
    return {.all = {.a = {a.data(), depth, true, slots.rows.data()},
                    .b = {b.data(), lines_are_rows ? depth : columns, lines_are_rows},
                    .c = c.data(),
                    .c_stride = columns + 1,
                    .rows = 0,
                    .columns = columns,
                    .depth = depth,
                    .first = 0},
            .slots = Batch<T>::Slots::are_rows,
            .offsets = slots.offsets.data(),
            .experts = slots.experts(),
            .most_slots = slots.count()};
  }
  /// Returns the sum of slot s of expert e for column j.
  T sum(Index e, Index s, Index j) const {
    const T* const w = b.data() + e * depth * columns;
    return chained<T>(
        depth, [&](Index k) { return a[std::size_t(slots.rows[std::size_t(s)] * depth + k)]; },
        [&](Index k) { return w[lines_are_rows ? j * depth + k : k * columns + j]; });
  }
};

/// Adds 100 e + 10 s + j to the sum of slot s of expert e for column j.
struct AddNumbers {
  static constexpr bool scalar_only = true;
  template <class A>
  typename A::Value operator()(const A&, Index e, Index s, Index j, typename A::Value v) const {
    return v + typename A::Value(100 * e + 10 * s + j);
  }
};

}  // namespace

TEST_CASE_TEMPLATE("FewRows: equals chains of multiply-adds, writes only its elements", T, float, double) {
  constexpr Index size = cpu::Register<T>::size, depth = cpu::Tile<T>::depth;
  Cpu::Context one(1), three(3, true);
  for (const bool lines_are_rows : {false, true})
    for (const Index columns : {Index(1), size, 3 * size + 1, 8 * size, 8 * size + 3, 40 * size})
      for (const Index terms : {Index(1), size - 1, Index(19), depth, 2 * depth + 37}) {
        if (terms == 0 || (!lines_are_rows && columns > 8 * size)) continue;
        for (const std::vector<Index>& counts :
             {std::vector<Index>{1}, {2, 0, 1}, {3, 4}, {8, 5, 7}, std::vector<Index>(30, 6)}) {
          RandomBatch<T> c(counts, terms, columns, lines_are_rows);
          CAPTURE(columns);
          CAPTURE(terms);
          CAPTURE(counts.size());
          const Batch<T> batch = c.batch();
          REQUIRE(FewRows<T>::fits(batch));
          const AddNumbers add;
          FewRows<T>::run(counts.size() % 2 == 0 ? three : one, batch, Epilogue<T>::with(add));
          Index wrong = 0;
          for (Index e = 0; e < c.slots.experts(); ++e)
            for (Index s = c.slots.offsets[std::size_t(e)]; s < c.slots.offsets[std::size_t(e) + 1]; ++s)
              for (Index j = 0; j < columns; ++j)
                wrong += c.c[std::size_t(s * (columns + 1) + j)] != c.sum(e, s, j) + T(100 * e + 10 * s + j);
          for (Index s = 0; s < c.slots.count(); ++s) wrong += c.c[std::size_t(s * (columns + 1) + columns)] != T(7);
          for (Index j = 0; j <= columns; ++j) wrong += c.c[std::size_t(c.slots.count() * (columns + 1) + j)] != T(7);
          CHECK(wrong == 0);
        }
      }
}

TEST_CASE("FewRows: reads nothing outside its factors") {
  // Each factor fills its own heap block, so that the sanitizers find a read before or behind the factor.
  for (const bool lines_are_rows : {false, true})
    for (Index columns = 1; columns < 40; columns += 3)
      for (Index depth = 1; depth < 40; depth += 2) {
        RandomBatch<float> c({3}, depth, columns, lines_are_rows);
        if (!FewRows<float>::fits(c.batch())) continue;
        const functor::Store store;
        Cpu::Context ctx(1);
        FewRows<float>::run(ctx, c.batch(), Epilogue<float>::with(store));
        Index wrong = 0;
        for (Index s = 0; s < 3; ++s)
          for (Index j = 0; j < columns; ++j) wrong += c.c[std::size_t(s * (columns + 1) + j)] != c.sum(0, s, j);
        CHECK(wrong == 0);
      }
}

TEST_CASE("FewRows: a NaN in one row or column stays there") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const bool lines_are_rows : {false, true}) {
    RandomBatch<float> c({3}, 30, 20, lines_are_rows);
    c.slots.rows = {0, 1, 2};
    c.a[30] = nan;                                        // row 1, k = 0
    c.b[std::size_t(lines_are_rows ? 7 * 30 : 7)] = nan;  // k = 0, column 7
    const functor::Store store;
    Cpu::Context ctx(1);
    FewRows<float>::run(ctx, c.batch(), Epilogue<float>::with(store));
    Index wrong = 0;
    for (Index s = 0; s < 3; ++s)
      for (Index j = 0; j < 20; ++j) {
        const float v = c.c[std::size_t(s * 21 + j)];
        wrong += (v != v) != (s == 1 || j == 7);
      }
    CHECK(wrong == 0);
  }
}

TEST_CASE("FewRows.fits: rejects batches that Product must compute") {
  constexpr Index wide = 8 * cpu::Register<float>::size;
  RandomBatch<float> good({8, 1}, 4, wide, false);
  CHECK(FewRows<float>::fits(good.batch()));
  RandomBatch<float> columns({8, 1}, 4, wide + 1, false);
  CHECK(!FewRows<float>::fits(columns.batch()));
  RandomBatch<float> rows({8, 9}, 4, wide, true);
  CHECK(!FewRows<float>::fits(rows.batch()));
  Batch<float> batch = good.batch();
  batch.accumulate = true;
  CHECK(!FewRows<float>::fits(batch));
  batch = good.batch();
  batch.slots = Batch<float>::Slots::are_depth;
  CHECK(!FewRows<float>::fits(batch));
  batch = good.batch();
  batch.all.a.lines_are_rows = false;
  CHECK(!FewRows<float>::fits(batch));
  batch = good.batch();
  batch.all.depth = 0;
  CHECK(!FewRows<float>::fits(batch));
  batch = good.batch();
  batch.all.b.rows = good.slots.rows.data();
  CHECK(!FewRows<float>::fits(batch));
}
