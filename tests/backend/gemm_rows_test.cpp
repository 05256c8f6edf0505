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

/// Copies a row out, counts its visits, and doubles it where it may.
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

/// What the functor saw, after gemm said what it should have been.
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
  const fn::AddTo<double, B> epilogue{offset};  // differs from row to row
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

}  // namespace

TEST_CASE("a product hands out its rows, kept or not: Cpu") {
  for (const int threads : {1, 3})
    for (const bool eager : {false, true}) check_all<Cpu>(Cpu::Context(threads, eager));
}
TEST_CASE("a product hands out its rows, kept or not: the naive backend") { check_all<test::Naive>({}); }
