#include "gatefold/backend/cpu/rank_update.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/backend/cpu/operand.hpp"
#include "gatefold/backend/cpu/packet.hpp"
#include "gatefold/backend/cpu/tile.hpp"
#include "gatefold/tensor/tensor.hpp"
#include "support/naive.hpp"

using namespace gatefold;
using cpu::Operand;

TEST_CASE_TEMPLATE("rank_update: sums over k in order, writes its elements only", T, float, double) {
  using cpu::Into;
  constexpr Index items = 40, size = cpu::Register<T>::size, wide = 3 * size;
  for (const Index columns : {Index(1), wide, 9 * size, 8 * wide + 5})
    for (const Index depth : {0, 1, 7, 32})
      for (const Into into : {Into::store, Into::add, Into::stream}) {
        if (into == Into::stream && columns % size != 0) continue;
        const bool add = into == Into::add;
        const Index rows = 5, stride = columns + size;
        const auto a = naive::random_vector<T>(items * 11, 1), b = naive::random_vector<T>(items * (columns + 2), 2),
                   before = naive::random_vector<T>(rows * stride, 3);
        std::vector<Index> gather;
        for (Index k = 0; k < depth; ++k) gather.push_back(k * 7 % items);
        Tensor<T, 1, Cpu> c(rows * stride);  // aligned
        std::copy(before.begin(), before.end(), c.data());
        cpu::rank_update<T>(Operand<T>{a.data(), 11, false, gather.data()}, 4, rows,
                            Operand<T>{b.data(), columns + 2, false}, 1, columns, depth, into, c.data(), stride);
        cpu::packet::end_of_stream();
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
            wrong += c(i * stride + j) != (j >= columns ? old : add ? old + lanes[0] : lanes[0]);
          }
        CHECK(wrong == 0);
      }
}

TEST_CASE_TEMPLATE("rank_update: stores -0 sums as 0", T, float, double) {
  constexpr Index columns = 9 * cpu::Register<T>::size;
  const T least = std::numeric_limits<T>::min();
  const std::vector<T> a(1, -least), b(columns, least);  // the product of two of them underflows to 0
  for (const auto into : {cpu::Into::store, cpu::Into::stream}) {
    Tensor<T, 1, Cpu> c(columns);
    std::fill_n(c.data(), columns, T(5));
    cpu::rank_update<T>({a.data(), 1, false}, 0, 1, {b.data(), columns, false}, 0, columns, 1, into, c.data(), columns);
    cpu::packet::end_of_stream();
    for (Index j = 0; j < columns; ++j) CHECK((c(j) == 0 && !std::signbit(c(j))));
  }
}
