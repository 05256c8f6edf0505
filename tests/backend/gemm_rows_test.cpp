#include "gatefold/backend/gemm_rows.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "support/naive.hpp"
#include "support/naive_backend.hpp"

using namespace gatefold;
using naive::random_vector;

namespace {

/// Copies the row, counts its visits, and doubles it if it may write.
struct TakeRow {
  Index columns;
  double* copy;
  int* visits;
  bool write;

  template <class Lanes>
  void operator()(const Lanes& lanes, Index n, double* row) const {
    each_column<double>(lanes, columns, [&](auto at, Index j) {
      at.store(copy + n * columns + j, at.load(row + j));
      if (write) at.store(row + j, at.load(row + j) * 2.0);
    });
    if (lanes.lane == 0) ++visits[n];
  }
};

/// Checks what the functor saw against a product by gemm.
template <class B>
void check(typename B::Context& ctx, Index items, Index dim, Index columns, bool transposed) {
  CAPTURE(items);
  CAPTURE(dim);
  CAPTURE(columns);
  CAPTURE(transposed);
  const auto x = random_vector<double>(items * dim, 1), w = random_vector<double>(dim * columns, 2),
             added = random_vector<double>(items * columns, 3);
  const View<const double, 2, B> a(x.data(), items, dim),
      b(w.data(), transposed ? columns : dim, transposed ? dim : columns), offset(added.data(), items, columns);
  const functor::AddTo<double, B> epilogue{offset};  // a different value for each row
  const auto size = static_cast<std::size_t>(items * columns);
  std::vector<double> expected(size), c(size, -1), seen(size), again(size);
  const View<double, 2, B> none(nullptr, items, columns), kept(c.data(), items, columns);
  B::gemm(ctx, a, false, b, transposed, false, View<double, 2, B>(expected.data(), items, columns), epilogue);

  std::vector<int> visits(static_cast<std::size_t>(items));
  B::gemm_rows(ctx, a, b, transposed, kept, epilogue, TakeRow{columns, seen.data(), visits.data(), false});
  CHECK(c == expected);
  CHECK(seen == expected);
  B::gemm_rows(ctx, a, b, transposed, none, epilogue, TakeRow{columns, again.data(), visits.data(), true});
  CHECK(again == expected);
  CHECK(std::count(visits.begin(), visits.end(), 2) == items);
}

template <class B>
void check_all(typename B::Context&& ctx) {
  for (const bool transposed : {false, true})
    for (const auto& [items, columns] :
         {std::pair<Index, Index>{0, 3}, {1, 1}, {5, 8}, {33, 9}, {70, 65}, {1100, 5}, {3, 257}, {4, 0}})
      for (const Index dim : {0, 1, 20}) check<B>(ctx, items, dim, columns, transposed);
}

/// Compares grouped_gemm_rows with grouped_gemm. The slots before the first and after the last group must not change.
template <class B>
void check_grouped(typename B::Context&& ctx) {
  const Index dim = 20, columns = 37, items = 9, offsets[] = {3, 5, 5, 40, 41}, slots = 45, size = slots * columns;
  std::vector<Index> rows;
  for (Index s = 0; s < slots; ++s) rows.push_back(s < 3 || s >= 41 ? -1 : 7 * s % items);
  const auto x = random_vector<double>(items * dim, 1), w = random_vector<double>(4 * dim * columns, 2);
  const Groups<B> groups{View<const Index, 1, B>(offsets, 5), View<const Index, 1, B>(rows.data(), slots), slots};
  const View<const double, 2, B> a(x.data(), items, dim);
  for (const bool transposed : {false, true}) {
    const View<const double, 3, B> b(w.data(), 4, transposed ? columns : dim, transposed ? dim : columns);
    std::vector<double> expected(static_cast<std::size_t>(size), -1), c = expected, seen = expected;
    std::vector<int> visits(static_cast<std::size_t>(slots));
    B::grouped_gemm(ctx, groups, a, b, transposed, View<double, 2, B>(expected.data(), slots, columns),
                    functor::Store{});
    B::grouped_gemm_rows(ctx, groups, a, b, transposed, View<double, 2, B>(c.data(), slots, columns),
                         TakeRow{columns, seen.data(), visits.data(), true});
    CHECK(seen == expected);
    for (Index s = 0; s < slots; ++s) {
      const bool in_use = 3 <= s && s < 41;
      CHECK(visits[static_cast<std::size_t>(s)] == in_use);
      for (Index j = s * columns; j < (s + 1) * columns; ++j)
        CHECK(c[static_cast<std::size_t>(j)] == expected[static_cast<std::size_t>(j)] * (in_use ? 2 : 1));
    }
  }
}

}  // namespace

TEST_CASE("grouped_gemm_rows: passes each row of used slots to the functor") {
  for (const int threads : {1, 3}) check_grouped<Cpu>(Cpu::Context(threads, threads > 1));
  check_grouped<test::Naive>({});
}
TEST_CASE("gemm_rows on Cpu: passes each row, kept or not") {
  for (const int threads : {1, 3})
    for (const bool eager : {false, true}) check_all<Cpu>(Cpu::Context(threads, eager));
}
TEST_CASE("gemm_rows on Naive: passes each row, kept or not") { check_all<test::Naive>({}); }
