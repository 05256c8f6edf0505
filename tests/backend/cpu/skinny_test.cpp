#include "gatefold/backend/cpu/skinny.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "support/larger.hpp"
#include "support/naive.hpp"

using namespace gatefold;
using cpu::Operand;
using cpu::Tile;

TEST_CASE_TEMPLATE("the skinny sum reads B's columns alone", T, float, double) {
  const Index columns = Tile<T>::columns + 3, depth = 9, rows = 5, stride = columns + Tile<T>::columns;
  const auto a = naive::random_vector<T>(rows * Tile<T>::stride, 4);
  const auto b = naive::random_vector<T>(depth * columns, 5);  // a sanitizer sees a step past the end
  std::vector<T> sums(static_cast<std::size_t>(rows * stride));
  cpu::skinny_sum<T>(rows, depth, a.data(), b.data(), columns, columns, sums.data(), stride);
  double worst = 0;
  for (Index i = 0; i < rows; ++i)
    for (Index j = 0; j < columns; ++j) {
      double sum = 0;
      for (Index k = 0; k < depth; ++k)
        sum += static_cast<double>(a[static_cast<std::size_t>(i * Tile<T>::stride + k)]) *
               static_cast<double>(b[static_cast<std::size_t>(k * columns + j)]);
      worst =
          support::larger(worst, std::abs(sum - static_cast<double>(sums[static_cast<std::size_t>(i * stride + j)])));
    }
  CHECK(worst <= 16 * std::numeric_limits<T>::epsilon());
}

TEST_CASE_TEMPLATE("a skinny product adds the chains of its blocks of k in order, to the present sums or to none", T,
                   float, double) {
  constexpr Index rows = 3, columns = Tile<T>::size + 1, stride = 2 * Tile<T>::size, items = 9, k = 5;
  for (const Index depth : {Index(0), Index(7), Tile<T>::depth, 2 * Tile<T>::depth + 30}) {
    const Index all = k + depth;
    const auto a = naive::random_vector<T>(items * all, 1), b = naive::random_vector<T>(all * (columns + 2), 2),
               before = naive::random_vector<T>(rows * stride, 3);
    const std::vector<Index> gather{4, 0, 8, 2, 7};
    const Operand<T> of_a{a.data(), all, true, gather.data()}, of_b{b.data(), columns + 2, false};
    std::vector<T> packed(static_cast<std::size_t>(rows * Tile<T>::stride)), part(before.size());
    for (const bool add : {false, true}) {
      std::vector<T> sums = before;
      cpu::skinny_product<T>(of_a, 2, rows, of_b, 1, columns, k, depth, add, sums.data(), stride, packed.data(),
                             part.data());
      for (Index i = 0; i < rows; ++i) {
        const T* const of_row = a.data() + gather[static_cast<std::size_t>(2 + i)] * all + k;
        for (Index j = 0; j < columns; ++j) {
          using V = cpu::Register<T>;
          T expected = before[static_cast<std::size_t>(i * stride + j)];
          for (Index x = 0; x == 0 || x < depth; x += Tile<T>::depth) {
            V chain(T(0));
            for (Index d = x; d < std::min(depth, x + Tile<T>::depth); ++d)
              chain = madd(V(of_row[d]), V(b[static_cast<std::size_t>((k + d) * (columns + 2) + 1 + j)]), chain);
            T lanes[V::size];
            chain.store(lanes);
            expected = add || x > 0 ? expected + lanes[0] : lanes[0];
          }
          CHECK(sums[static_cast<std::size_t>(i * stride + j)] == expected);
        }
      }
    }
  }
}
