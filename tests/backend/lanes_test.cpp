#include "gatefold/backend/lanes.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <barrier>
#include <cmath>
#include <thread>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/backend/softmax.hpp"
#include "gatefold/gate/composed_gate.hpp"
#include "gatefold/gate/selection/noisy_top_1.hpp"
#include "gatefold/optim/normalized_gd.hpp"
#include "gatefold/routing/sparse_plan.hpp"
#include "support/naive.hpp"

using namespace gatefold;
using naive::random_vector;

namespace {

/// What the lanes of one row share.
struct Row {
  explicit Row(int size) : gate(size), values(static_cast<std::size_t>(size)) {}
  std::barrier<> gate;
  std::vector<double> values;
  const void* first = nullptr;  // the address of the first lane's value
};

/// Several lanes behind the interface of OneLane, one thread each, as a warp has them.
struct ManyLanes {
  int lane, size;
  Row& row;

  template <class T, class F>
  T share(T v, const F& f) const {
    row.values[static_cast<std::size_t>(lane)] = static_cast<double>(v);
    row.gate.arrive_and_wait();
    double all = row.values[0];
    for (std::size_t i = 1; i < row.values.size(); ++i) all = f(all, row.values[i]);
    row.gate.arrive_and_wait();
    return static_cast<T>(all);
  }
  template <class T>
  T sum(T v) const {
    return share(v, [](double a, double b) { return a + b; });
  }
  template <class T>
  T max(T v) const {
    return share(v, [](double a, double b) { return std::max(a, b); });
  }
  template <class T>
  T of_first(T v) const {
    if (lane == 0) row.first = &v;
    row.gate.arrive_and_wait();
    const T first = *static_cast<const T*>(row.first);
    row.gate.arrive_and_wait();
    return first;
  }
};

/// Calls f(lanes, n) for every row, with `size` lanes in step.
template <class F>
void for_rows(int size, Index rows, const F& f) {
  Row row(size);
  std::vector<std::thread> threads;
  for (int lane = 0; lane < size; ++lane)
    threads.emplace_back([&, lane] {
      for (Index n = 0; n < rows; ++n) f(ManyLanes{lane, size, row}, n);
    });
  for (std::thread& t : threads) t.join();
}

struct SumAndMax {
  View<const double, 2, Cpu> x;
  double *sum, *max;
  template <class Lanes>
  void operator()(const Lanes& lanes, Index n) const {
    double s = 0, m = x(n, 0);
    for (Index j = lanes.lane; j < x.extent(1); j += lanes.size) {
      s += x(n, j);
      m = std::max(m, x(n, j));
    }
    s = lanes.sum(s);
    m = lanes.max(m);
    if (lanes.lane == 0) sum[n] = s, max[n] = m;
  }
};

bool close(const std::vector<double>& a, const std::vector<double>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](double u, double v) { return std::abs(u - v) <= 1e-14 * (1 + std::abs(v)); });
}

using In2 = View<const double, 2, Cpu>;
using Out2 = View<double, 2, Cpu>;

}  // namespace

TEST_CASE("OneLane: computes a whole row, reductions return their argument") {
  static_assert(OneLane::size == 1 && OneLane::lane == 0);
  CHECK(OneLane{}.sum(2.5) == 2.5);
  CHECK(OneLane{}.max(-3.0f) == -3.0f);
  const std::vector<double> x{1, 5, 2, -4, -1, -2};
  double sum[2], max[2];
  for (Index n = 0; n < 2; ++n) SumAndMax{In2(x.data(), 2, 3), sum, max}(OneLane{}, n);
  CHECK(sum[0] == 8);
  CHECK(max[0] == 5);
  CHECK(sum[1] == -7);
  CHECK(max[1] == -1);
}

TEST_CASE("zero_columns: writes zeros to the columns of a row only") {
  std::vector<double> x(6, -1);
  zero_columns(OneLane{}, x.data() + 1, 4);
  zero_columns(OneLane{}, x.data(), 0);
  CHECK(x == std::vector<double>{-1, 0, 0, 0, 0, -1});
}

TEST_CASE("row functors: several lanes give the results of one lane") {
  const Index rows = 5;
  for (const Index columns : {1, 3, 8, 37})
    for (const int lanes : {2, 4}) {
      CAPTURE(columns);
      CAPTURE(lanes);
      const auto x = random_vector<double>(rows * columns, 1), d = random_vector<double>(rows * columns, 2);
      auto same = [&](const auto& functor, std::vector<double>& out, Index count) {
        const std::vector<double> before = out;
        for (Index n = 0; n < count; ++n) functor(OneLane{}, n);
        const std::vector<double> expected = out;
        out = before;
        for_rows(lanes, count, functor);
        CHECK(close(out, expected));
        CHECK(out != before);
      };
      const In2 in(x.data(), rows, columns), din(d.data(), rows, columns);

      std::vector<double> out(2 * static_cast<std::size_t>(rows), -100);
      same(SumAndMax{in, out.data(), out.data() + rows}, out, rows);
      std::vector<double> p(x.size());
      same(functor::Softmax<double, Cpu>{in, Out2(p.data(), rows, columns)}, p, rows);
      if (columns > 1) {
        std::vector<double> dz(x.size());
        same(functor::SoftmaxBackward<double, Cpu>{In2(p.data(), rows, columns), din, Out2(dz.data(), rows, columns)},
             dz, rows);
      }
      std::vector<double> squares(static_cast<std::size_t>(rows), 0.5);
      same(functor::SliceNorm<double>{x.data(), columns, false, squares.data()}, squares, rows);

      // The weights show which experts were picked.
      const Index k = std::min<Index>(columns, 3);
      std::vector<Index> item(static_cast<std::size_t>(rows * k)), expert = item;
      std::vector<double> weights(item.size());
      const functor::PickTopK<double, Cpu> picks{in, din, k, true, item, expert, weights};
      if (columns > 1) {
        same(picks, weights, rows);
        std::vector<double> q(x.size());
        const Out2 mixed(q.data(), rows, columns);
        same(functor::RouteRow{functor::Softmax<double, Cpu>{in, mixed}, picks}, q, rows);
        same(functor::PickTopKBackward<double, Cpu>{din, expert, weights, k, true, mixed}, q, rows);
      }

      // Some rows contain NaN, infinities and ties. The noise is that of one lane.
      auto ranks = x;
      for (Index j = 0; j < columns; ++j) {
        ranks[static_cast<std::size_t>(j)] = std::nan("");
        ranks[static_cast<std::size_t>(columns + j)] = j % 2 ? -INFINITY : std::nan("");
        ranks[static_cast<std::size_t>(2 * columns + j)] = j % 3 == 2 ? INFINITY : 0;
        ranks[static_cast<std::size_t>(3 * columns + j)] = 1;
      }
      for (const bool noisy : {false, true}) {
        std::vector<Index> first(static_cast<std::size_t>(rows)), chosen(first.size());
        std::vector<double> w(first.size(), -3);
        const functor::PickNoisyTop1<UniformNoise, double, Cpu> pick{
            In2(ranks.data(), rows, columns), din, 0.5, {{Seed{3}, 1}, noisy}, false, first, chosen, w};
        for (Index n = 0; n < rows; ++n) pick(OneLane{}, n);
        const auto of_one = chosen;
        const auto weights_of_one = w;
        std::fill(chosen.begin(), chosen.end(), -9);
        for_rows(lanes, rows, pick);
        CHECK(chosen == of_one);
        CHECK(w == weights_of_one);
      }

      // Five slots of three items. Item 1 has no slot; pick 2 was dropped.
      const std::vector<Index> item_offsets{0, 3, 3, 4}, item_slots{0, 1, 3, 2, -1}, pick{4, 0, 3, 1, -1};
      const std::vector<Index> offsets{0, 1, 4}, slot_items{0, 0, 2, 0, -1};
      const std::vector<double> weight{0.5, 2, 9, -1, 0.25};
      std::vector<double> combined(3 * static_cast<std::size_t>(columns), 7);
      same(functor::Combine<double, Cpu>{item_offsets, item_slots, pick, weight, in, Out2(combined.data(), 3, columns),
                                         false},
           combined, 3);
      same(
          functor::Combine<double, Cpu>{
              item_offsets, item_slots, pick, {}, in, Out2(combined.data(), 3, columns), true},
          combined, 3);
      std::vector<double> adjoints(x.size() + 5, 3);
      same(functor::CombineBackward<double, Cpu>{{offsets, slot_items, 5},
                                                 pick,
                                                 weight,
                                                 in,
                                                 din,
                                                 Out2(adjoints.data(), rows, columns),
                                                 View<double, 1, Cpu>(adjoints.data() + x.size(), 5)},
           adjoints, rows);
    }
}

TEST_CASE("from_first: reads once and gives every lane the same value") {
  for (const int size : {1, 2, 5}) {
    std::vector<int> calls(static_cast<std::size_t>(size));
    std::vector<double> got(calls.size());
    const auto ask = [&](const auto& lanes, Index) {
      const auto lane = static_cast<std::size_t>(lanes.lane);
      got[lane] = from_first(lanes, [&] {
        ++calls[lane];
        return 3.5 + static_cast<double>(lane);
      });
    };
    for_rows(size, 1, ask);
    CHECK(got == std::vector<double>(calls.size(), 3.5));
    CHECK(calls[0] == 1);
    CHECK(std::count(calls.begin(), calls.end(), 0) == size - 1);
    ask(OneLane{}, 0);
    CHECK(calls[0] == 2);
    CHECK(got[0] == 3.5);
  }
}
