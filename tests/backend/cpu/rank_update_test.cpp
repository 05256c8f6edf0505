#include "gatefold/backend/cpu/rank_update.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "gatefold/backend/cpu/operand.hpp"
#include "support/naive.hpp"

using namespace gatefold;
using cpu::Operand;

TEST_CASE_TEMPLATE("a rank update is the chain over k of each element, stored or added, and touches nothing beside", T,
                   float, double) {
  constexpr Index items = 40, wide = 3 * cpu::Register<T>::size;
  for (const Index columns : {Index(1), wide, 8 * wide + 5})
    for (const Index depth : {0, 1, 7, 32})
      for (const bool add : {false, true}) {
        const Index rows = 5, stride = columns + 3;
        const auto a = naive::random_vector<T>(items * 11, 1), b = naive::random_vector<T>(items * (columns + 2), 2),
                   before = naive::random_vector<T>(rows * stride, 3);
        std::vector<Index> gather;
        for (Index k = 0; k < depth; ++k) gather.push_back(k * 7 % items);
        std::vector<T> c = before;
        cpu::rank_update<T>(Operand<T>{a.data(), 11, false, gather.data()}, 4, rows,
                            Operand<T>{b.data(), columns + 2, false}, 1, columns, depth, add, c.data(), stride);
        int wrong = 0;
        for (Index i = 0; i < rows; ++i)
          for (Index j = 0; j < stride; ++j) {
            using V = cpu::Register<T>;
            V s(T(0));
            for (Index k = 0; k < depth; ++k)
              s = madd(V(a[std::size_t(gather[std::size_t(k)] * 11 + 4 + i)]),
                       V(b[std::size_t(k * (columns + 2) + 1 + std::min(j, columns - 1))]), s);
            T lanes[V::size];
            s.store(lanes);
            const T old = before[std::size_t(i * stride + j)];
            wrong += c[std::size_t(i * stride + j)] != (j >= columns ? old : add ? old + lanes[0] : lanes[0]);
          }
        CHECK(wrong == 0);
      }
}
