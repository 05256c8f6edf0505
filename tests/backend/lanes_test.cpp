#include "gatefold/backend/lanes.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <barrier>
#include <cmath>
#include <cstdint>
#include <limits>
#include <thread>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/backend/softmax.hpp"
#include "gatefold/gate/composed_gate.hpp"
#include "gatefold/gate/selection/noisy_top_1.hpp"
#include "gatefold/gatefold.hpp"
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

/// One of several lanes, with the interface of OneLane. Each lane runs on its own thread, as in a warp.
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

      // Some rows contain NaN, infinities and ties. Several lanes must draw the same noise as one lane.
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

      // Four of the five picks of three items have a slot, because pick 2 was dropped. Item 1 has no slot.
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

namespace {

/// Returns how many elements are wrong after CarryRows has copied every third row of 20, the last row first, and copied
/// the rows back, and after it has copied 7 rows in order. Some rows hold ties, large or subnormal numbers.
template <class V, class B, class RoundF>
int differences(Index width, const RoundF& rounded) {
  constexpr Index all = 20;
  typename B::Context ctx(1);
  auto from = uniform_tensor<float>(ctx, Seed{1}, 1.0, all, width);
  for (Index j = 0; j < width; ++j) {
    from(19, j) = 1 + static_cast<float>(2 * j + 1) / 256;  // ties
    from(16, j) = j % 2 ? 3.4e38f : -3.4e38f;
    from(13, j) = static_cast<float>(j) * 1e-39f;
  }
  Tensor<Index, 1, B> rows(7);
  for (Index i = 0; i < 7; ++i) rows(i) = 19 - 3 * i;
  Tensor<V, 2, B> packed(7, width), first(7, width);
  auto back = constant_tensor<float>(ctx, -1, all, width), in_order = constant_tensor<float>(ctx, -1, 7, width);
  B::for_rows(ctx, 7, functor::CarryRows<float, float, V, B>{rows.view(), from, {}, packed});
  B::for_rows(ctx, 7, functor::CarryRows<float, V, float, B>{{}, packed, rows.view(), back});
  B::for_rows(ctx, 7, functor::CarryRows<float, float, V, B>{{}, from, {}, first});
  B::for_rows(ctx, 7, functor::CarryRows<float, V, float, B>{{}, first, {}, in_order});
  int wrong = 0;
  for (Index r = 0; r < all; ++r)
    for (Index j = 0; j < width; ++j) {
      wrong += back(r, j) != (r % 3 == 1 ? rounded(from(r, j)) : -1.0f);
      if (r < 7) wrong += in_order(r, j) != rounded(from(r, j));
    }
  return wrong;
}
/// Rounds v to 8 bits of mantissa by powers of 2, to nearest with ties to even. Subnormal numbers are multiples of
/// 2⁻¹³³.
float by_hand(float v) {
  int exponent = 0;
  std::frexp(v, &exponent);
  const int unit = std::max(exponent - 8, -133);
  const double r = std::ldexp(std::nearbyint(std::ldexp(static_cast<double>(v), -unit)), unit);
  return std::abs(r) > static_cast<double>(std::numeric_limits<float>::max())
             ? std::copysign(std::numeric_limits<float>::infinity(), v)
             : static_cast<float>(r);
}

}  // namespace

TEST_CASE("CarryRows: copies or rounds rows to their targets only") {
  for (const Index width : {1, 3, 8, 16, 37}) {
    CAPTURE(width);
    CHECK(differences<float, Cpu>(width, [](float v) { return v; }) == 0);
    CHECK(differences<Bfloat16, Cpu>(width, by_hand) == 0);
    CHECK(differences<Bfloat16, CpuBf16>(width, by_hand) == 0);
  }
}

TEST_CASE("CarryRows: copies bfloat16 rows bit by bit") {
  Cpu::Context ctx(1);
  const Index width = 37;
  Tensor<Bfloat16, 2, Cpu> from(3, width), to(2, width);
  for (Index i = 0; i < from.size(); ++i)  // all exponents, both signs, NaN
    from.data()[i] = Bfloat16{static_cast<std::uint16_t>(i * 593)};
  Tensor<Index, 1, Cpu> rows(2);
  rows(0) = 2, rows(1) = 0;
  Cpu::for_rows(ctx, 2, functor::CarryRows<float, Bfloat16, Bfloat16, Cpu>{rows.view(), from, {}, to});
  Index differ = 0;
  for (Index r = 0; r < 2; ++r)
    for (Index j = 0; j < width; ++j) {
      const Bfloat16 v = from(rows(r), j);
      const bool number = (v.bits & 0x7fff) <= 0x7f80;
      differ += number ? to(r, j).bits != v.bits : (to(r, j).bits & 0x7fff) <= 0x7f80;
    }
  CHECK(differ == 0);
}

TEST_CASE_TEMPLATE("SumPositions: sums positions in order and scales, backward adds", T, float, double) {
  Cpu::Context ctx(2);
  constexpr Index items = 5, length = 4;
  for (const Index dim : {1, 7, 16, 37})
    for (const Index count : {1, 3, 4})
      for (const T share : {T(1), 1 / T(3)}) {
        CAPTURE(dim);
        CAPTURE(count);
        const auto x = uniform_tensor<T>(ctx, Seed{1}, 1, items, length * dim),
                   dtotal = uniform_tensor<T>(ctx, Seed{2}, 1, items, dim);
        auto total = constant_tensor<T>(ctx, -1, items, dim), dx = constant_tensor<T>(ctx, 2, items, length * dim);
        Cpu::for_rows(ctx, items, functor::SumPositions<T, Cpu>{count, share, x, total});
        Cpu::for_rows(ctx, items, functor::SumPositionsBackward<T, Cpu>{count, share, dtotal, dx});
        Index wrong = 0;
        for (Index n = 0; n < items; ++n)
          for (Index d = 0; d < dim; ++d) {
            T sum = x(n, d);
            for (Index l = 1; l < count; ++l) sum += x(n, l * dim + d);
            wrong += total(n, d) != sum * share;
            for (Index l = 0; l < length; ++l) {
              const double exact = 2 + double(share) * double(dtotal(n, d)), got = double(dx(n, l * dim + d));
              wrong += l < count ? !(std::abs(got - exact) <= 4 * double(std::numeric_limits<T>::epsilon())) : got != 2;
            }
          }
        CHECK(wrong == 0);
      }
}
