#include "gatefold/backend/drop.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/backend/elementwise.hpp"
#include "gatefold/core/philox.hpp"
#include "gatefold/tensor/tensor.hpp"

using namespace gatefold;

namespace {

template <class T>
std::vector<T> dropped(Random random, double rate, Index rows, Index columns, int threads = 1) {
  Cpu::Context ctx(threads, true);
  Tensor<T, 2, Cpu> x(rows, columns);
  for (Index i = 0; i < x.size(); ++i) x.data()[i] = T(i + 1);
  Cpu::for_rows(ctx, rows, functor::DropRows<T, Cpu>{{random, rate}, x.view(), x.view()});
  return {x.data(), x.data() + x.size()};
}
/// Checks that `share` is true for n · chance of n elements, within five standard deviations of the binomial law.
template <class F>
void expect_share(Index n, double chance, F&& share) {
  Index count = 0;
  for (Index i = 0; i < n; ++i) count += share(i) ? 1 : 0;
  CHECK(std::abs(double(count) - double(n) * chance) <= 5 * std::sqrt(double(n) * chance * (1 - chance)));
}

}  // namespace

TEST_CASE_TEMPLATE("drop: element (n, d) uses random number n·D + d", T, float, double) {
  const Random random{Seed{9}, 4};
  for (const double rate : {0.1, 0.5, 0.9})
    for (const Index columns : {1, 7, 16, 45}) {
      std::vector<T> expected;
      for (Index i = 0; i < 11 * columns; ++i)
        expected.push_back(
            uniform<T>(random.seed, random.step, std::uint64_t(i)) < T(rate) ? T(0) : T(i + 1) * T(1 / (1 - rate)));
      for (const int threads : {1, 2, 3, 8}) CHECK(dropped<T>(random, rate, 11, columns, threads) == expected);
    }
}

namespace {

/// Computes y[i] = 3 u[i]. u need not be stored in memory.
template <class T>
struct Triple {
  T *u, *y;
  template <class A>
  void operator()(const A& at, Index i) const {
    y[i] = 3 * at.load(u + i);
  }
};

}  // namespace

TEST_CASE_TEMPLATE("drop: calls for single elements equal calls for rows", T, float, double) {
  const Random random{Seed{9}, 4};
  Cpu::Context ctx(2, true);
  const auto expected = dropped<T>(random, 0.4, 11, 45);
  Tensor<T, 2, Cpu> x(11, 45), y(11, 45);
  for (Index i = 0; i < x.size(); ++i) x.data()[i] = T(i + 1);
  Cpu::for_rows(ctx, 11,
                functor::ElementWithStep<functor::DropRows<T, Cpu>, Triple<T>, T>{
                    {{random, 0.4}, x.view(), x.view()}, {x.data(), y.data()}, x.data()});
  for (Index i = 0; i < x.size(); ++i) {
    CHECK(x.data()[i] == expected[std::size_t(i)]);
    CHECK(y.data()[i] == 3 * expected[std::size_t(i)]);
  }
}

TEST_CASE_TEMPLATE("drop: counts of dropped elements follow the binomial law", T, float, double) {
  const Index rows = 400, columns = 250;
  const Random random{Seed{2}, 1};
  for (const double rate : {0.1, 0.3, 0.7}) {
    const auto x = dropped<T>(random, rate, rows, columns);
    const auto is_dropped = [&](Index i) { return x[std::size_t(i)] == 0; };
    expect_share(rows * columns, rate, is_dropped);
    for (const Index n : {0, 17, 399})
      expect_share(columns, rate, [&](Index d) { return is_dropped(n * columns + d); });
    for (const Index d : {0, 101, 249}) expect_share(rows, rate, [&](Index n) { return is_dropped(n * columns + d); });
    // Neighbouring elements, and elements with another layer, step or seed, agree as often as independent draws.
    const double agree = rate * rate + (1 - rate) * (1 - rate);
    expect_share(rows * columns - 1, agree, [&](Index i) { return is_dropped(i) == is_dropped(i + 1); });
    for (const Random& other : {random.at(0), random.at(1), Random{Seed{2}, 2}, Random{Seed{3}, 1}}) {
      const auto y = dropped<T>(other, rate, rows, columns);
      expect_share(rows * columns, agree, [&](Index i) { return is_dropped(i) == (y[std::size_t(i)] == 0); });
    }
  }
}
