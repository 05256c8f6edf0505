#include "gatefold/backend/backend.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <type_traits>
#include <utility>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/backend/initial_values.hpp"
#include "gatefold/core/bfloat16.hpp"
#include "gatefold/tensor/tensor.hpp"
#include "support/larger.hpp"
#include "support/naive.hpp"

using namespace gatefold;

// Compares the primitives that every backend must have with plain code of their definitions. The folder of each backend
// tests how that backend divides its work.

using namespace gatefold;

namespace {

using B = Cpu;
using naive::random_vector;

/// Types that are no backends.
struct Bare {};
struct NoContext : Cpu {
  struct Context {};
};
struct NotItsContext : Cpu {};  // Context::Backend is Cpu

template <class T>
Tensor<T, 2, B> matrix(Index rows, Index columns, unsigned seed) {
  Tensor<T, 2, B> t(rows, columns);
  const auto values = random_vector<T>(rows * columns, seed);
  std::copy(values.begin(), values.end(), t.data());
  return t;
}

template <class T>
constexpr double tolerance = sizeof(T) == 4 ? 1e-6 : 1e-13;

/// An epilogue whose results contain slot and expert, so that a wrong argument shows.
struct Tagged {
  template <class A>
  typename A::Value operator()(const A& at, Index e, Index s, Index, typename A::Value v) const {
    return v + at.load(&tag(e * slots + s, 0));
  }
  View<const double, 2, B> tag;
  Index slots;
};

struct Square {
  double operator()(Index i) const { return static_cast<double>(i) * static_cast<double>(i); }
};
struct Visit {
  int* visits;
  void operator()(Index i) const { ++visits[i]; }
  template <class Lanes>
  void operator()(const Lanes& lanes, Index row) const {
    if (lanes.lane == 0) ++visits[row];
  }
};

struct Set {
  Index* to;
  Index value;
  void operator()(Index i) const { to[i] = value; }
};

}  // namespace

TEST_CASE("Backend: Cpu satisfies the concept, incomplete types do not") {
  static_assert(Backend<Cpu>);
  static_assert(!Backend<Bare> && !detail_::backend::Memory<Bare>);
  static_assert(!Backend<NoContext>);
  static_assert(!Backend<NotItsContext>);
  static_assert(!Backend<int>);
}

TEST_CASE("for_each, for_rows: visit every index once") {
  for (const int threads : {1, 2, 3}) {
    Cpu::Context ctx(threads);
    for (const Index n : {0, 1, 2, 63, 64, 65, 1000, 40000}) {
      std::vector<int> each(static_cast<std::size_t>(n) + 1), rows(each.size());
      B::for_each(ctx, n, Visit{each.data()});
      B::for_rows(ctx, n, Visit{rows.data()});
      CAPTURE(threads);
      CAPTURE(n);
      CHECK(std::count(each.begin(), each.end(), 1) == n);
      CHECK(std::count(rows.begin(), rows.end(), 1) == n);
      CHECK(each.back() == 0);
      CHECK(rows.back() == 0);
    }
  }
}

TEST_CASE("for_tasks: runs each task once with its scratch, rethrows exceptions") {
  for (const int threads : {1, 2, 3})
    for (const bool eager : {false, true}) {
      Cpu::Context ctx(threads, eager);
      for (const Index n : {0, 1, 2, 3, 5, 6, 12, 100}) {
        CAPTURE(threads);
        CAPTURE(n);
        std::vector<int> visits(static_cast<std::size_t>(n) + 1), broken(visits.size());
        B::for_tasks(ctx, n, [&](Cpu::Context& own, Index first, Index count) {
          for (Index task = first; task < first + count; ++task) {
            auto mark = own.mark();
            const auto numbers = own.scratch<Index>(1000);
            B::for_each(own, 1000, Set{numbers.data(), task});
            broken[static_cast<std::size_t>(task)] = std::count(numbers.data(), numbers.data() + 1000, task) != 1000;
            ++visits[static_cast<std::size_t>(task)];
          }
        });
        CHECK(std::count(visits.begin(), visits.end(), 1) == n);
        CHECK(visits.back() == 0);
        CHECK(std::count(broken.begin(), broken.end(), 1) == 0);
      }
      const auto throws = [&] {
        B::for_tasks(ctx, 12, [](Cpu::Context&, Index first, Index count) {
          if (first <= 7 && 7 < first + count) throw ArgumentError("seven");
        });
      };
      CHECK_THROWS_WITH_AS(throws(), "seven", ArgumentError);
    }
}

TEST_CASE("reduce: adds the sum of f to out") {
  Cpu::Context ctx(2);
  for (const Index n : {0, 1, 5, 4096, 4097, 30000}) {
    double out = 1;
    B::reduce<double>(ctx, n, Square{}, &out);
    const double m = static_cast<double>(n);
    CAPTURE(n);
    CHECK(out == 1 + (m - 1) * m * (2 * m - 1) / 6);  // integers below 2^53: exact in any order
  }
}

TEST_CASE("group_by: sorts stably and omits negative keys") {
  for (const int threads : {1, 2}) {
    Cpu::Context ctx(threads);
    for (const Index groups : {1, 2, 7, 257})
      for (const Index n : {0, 1, 40, 1000, 70000}) {
        std::vector<Index> keys;
        for (const double v : random_vector<double>(n, 5))
          keys.push_back(static_cast<Index>(std::floor((v + 1) / 2 * static_cast<double>(groups + 1))) - 1);
        std::vector<Index> offsets(static_cast<std::size_t>(groups) + 1), order(keys.size(), -7);
        B::group_by(ctx, keys, offsets, order);

        std::vector<Index> expected;
        for (Index i = 0; i < n; ++i)
          if (keys[static_cast<std::size_t>(i)] >= 0) expected.push_back(i);
        std::stable_sort(expected.begin(), expected.end(), [&](Index a, Index b) {
          return keys[static_cast<std::size_t>(a)] < keys[static_cast<std::size_t>(b)];
        });
        CAPTURE(groups);
        CAPTURE(n);
        for (Index g = 0; g <= groups; ++g) {
          Index below = 0;
          for (const Index key : keys) below += key >= 0 && key < g;
          if (offsets[static_cast<std::size_t>(g)] != below) FAIL_CHECK("offset of group " << g);
        }
        const std::vector<Index> got(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(expected.size()));
        CHECK(got == expected);
      }
  }
}

TEST_CASE("group_by: with only negative keys every group is empty") {
  Cpu::Context ctx(1);
  std::vector<Index> keys(5, -1), offsets(4, 9), order(5);
  B::group_by(ctx, keys, offsets, order);
  CHECK(offsets == std::vector<Index>{0, 0, 0, 0});
}

TEST_CASE("group_by: throws if a key exceeds the last group") {
  Cpu::Context ctx(1);
  const std::vector<Index> keys{0, 3, 1};
  std::vector<Index> offsets(4), order(3);
  CHECK_THROWS_WITH_AS(B::group_by(ctx, keys, offsets, order),
                       "group_by: key: expected less than 3 (the number of experts or items), got 3", ArgumentError);
}

TEST_CASE_TEMPLATE("gemm: stores or adds op(a) op(b), then applies the epilogue", T, float, double) {
  Cpu::Context ctx(2);
  struct Shape {
    Index m, n, k;
  };
  for (const Shape s : {Shape{1, 1, 1}, {3, 5, 4}, {17, 9, 33}, {64, 40, 20}, {0, 4, 3}, {4, 0, 3}, {4, 3, 0}})
    for (const bool ta : {false, true})
      for (const bool tb : {false, true})
        for (const bool accumulate : {false, true}) {
          const auto a = matrix<T>(ta ? s.k : s.m, ta ? s.m : s.k, 1), b = matrix<T>(tb ? s.n : s.k, tb ? s.k : s.n, 2);
          const auto before = matrix<T>(s.m, s.n, 3), bias = matrix<T>(1, s.n, 4);
          auto c = matrix<T>(s.m, s.n, 3);
          B::gemm(ctx, a.view(), ta, b.view(), tb, accumulate, c.view(), functor::AddBias<T, B>{bias.view()});
          const naive::Matrix<T> na{a.data(), a.extent(1), ta}, nb{b.data(), b.extent(1), tb};
          double worst = 0;
          for (Index i = 0; i < s.m; ++i)
            for (Index j = 0; j < s.n; ++j) {
              const double expected = naive::dot(na, i, nb, j, s.k) + static_cast<double>(bias(0, j)) +
                                      (accumulate ? static_cast<double>(before(i, j)) : 0.0);
              worst = support::larger(worst, std::abs(expected - static_cast<double>(c(i, j))));
            }
          CAPTURE(s.m);
          CAPTURE(s.n);
          CAPTURE(s.k);
          CHECK(worst <= tolerance<T> * static_cast<double>(s.k + 1));
        }
}

TEST_CASE_TEMPLATE("grouped_gemm, grouped_outer and grouped_sum: equal naive loops", T, float, double) {
  const Index items = 13, inner = 10, outer = 7;
  for (const std::vector<Index>& counts :
       {std::vector<Index>{4}, {0, 3, 0, 20, 1, 0}, {0, 0, 0}, {40, 0, 0, 0}, std::vector<Index>(257, 1)}) {
    const naive::Slots slots(counts, items, 11);
    const Index experts = slots.experts(), S = slots.count(), spare = 3;
    for (const bool transpose : {false, true}) {
      Cpu::Context ctx(2);
      const auto a = matrix<T>(items, inner, 1), dc = matrix<T>(S + spare, outer, 2),
                 bias = matrix<T>(experts, outer, 9);
      Tensor<T, 3, B> w(experts, transpose ? outer : inner, transpose ? inner : outer), dw(experts, inner, outer);
      const auto values = random_vector<T>(w.size(), 3), start = random_vector<T>(dw.size(), 4);
      std::copy(values.begin(), values.end(), w.data());
      std::copy(start.begin(), start.end(), dw.data());
      auto c = matrix<T>(S + spare, outer, 5), db = matrix<T>(experts, outer, 6);
      const auto c_before = matrix<T>(S + spare, outer, 5), db_before = matrix<T>(experts, outer, 6);

      std::vector<Index> rows = slots.rows;
      rows.resize(static_cast<std::size_t>(S + spare), -1);
      const Groups<B> groups{slots.offsets, rows, S + spare};
      B::grouped_gemm(ctx, groups, a.view(), std::as_const(w).view(), transpose, c.view(),
                      functor::AddBias<T, B>{bias.view()});
      B::grouped_outer(ctx, groups, a.view(), dc.view(), dw.view());
      B::grouped_sum(ctx, groups.in_slot_order(), dc.view(), db.view());

      double worst_c = 0, worst_w = 0, worst_b = 0;
      for (Index e = 0; e < experts; ++e) {
        const Index from = slots.offsets[static_cast<std::size_t>(e)],
                    to = slots.offsets[static_cast<std::size_t>(e) + 1];
        for (Index j = 0; j < outer; ++j) {
          double sum = static_cast<double>(db_before(e, j));
          for (Index s = from; s < to; ++s) {
            sum += static_cast<double>(dc(s, j));
            double v = static_cast<double>(bias(e, j));
            for (Index k = 0; k < inner; ++k)
              v += static_cast<double>(a(rows[static_cast<std::size_t>(s)], k)) *
                   static_cast<double>(transpose ? w(e, j, k) : w(e, k, j));
            worst_c = support::larger(worst_c, std::abs(v - static_cast<double>(c(s, j))));
          }
          worst_b = support::larger(worst_b, std::abs(sum - static_cast<double>(db(e, j))));
          for (Index k = 0; k < inner; ++k) {
            double v = static_cast<double>(start[static_cast<std::size_t>((e * inner + k) * outer + j)]);
            for (Index s = from; s < to; ++s)
              v += static_cast<double>(a(rows[static_cast<std::size_t>(s)], k)) * static_cast<double>(dc(s, j));
            worst_w = support::larger(worst_w, std::abs(v - static_cast<double>(dw(e, k, j))));
          }
        }
      }
      CAPTURE(experts);
      CAPTURE(transpose);
      CHECK(worst_c <= tolerance<T> * 12);
      CHECK(worst_w <= tolerance<T> * 42);
      CHECK(worst_b <= tolerance<T> * 42);
      for (Index s = S; s < S + spare; ++s)
        for (Index j = 0; j < outer; ++j)
          if (c(s, j) != c_before(s, j)) FAIL_CHECK("row " << s << " past the last slot was written");
    }
  }
}

TEST_CASE("epilogue: receives expert, slot and column") {
  Cpu::Context ctx(1);
  const std::vector<Index> offsets{0, 2, 2, 5};
  const auto a = matrix<double>(5, 3, 1);
  Tensor<double, 3, B> w(3, 3, 1);
  const auto values = random_vector<double>(9, 3);
  std::copy(values.begin(), values.end(), w.data());
  Tensor<double, 2, B> tag(15, 1), c(5, 1);
  for (Index i = 0; i < 15; ++i) tag(i, 0) = 1000.0 * static_cast<double>(i);
  const Groups<B> groups{offsets, {}, 5};
  B::grouped_gemm(ctx, groups, a.view(), std::as_const(w).view(), false, c.view(),
                  Tagged{std::as_const(tag).view(), 5});
  for (Index s = 0; s < 5; ++s) {
    const Index e = s < 2 ? 0 : 2;
    double v = 1000.0 * static_cast<double>(e * 5 + s);
    for (Index k = 0; k < 3; ++k) v += a(s, k) * w(e, k, 0);
    CHECK(c(s, 0) == doctest::Approx(v).epsilon(1e-12));
  }
}

TEST_CASE("from_host and to_host: copies are complete on return") {
  Cpu::Context ctx(1);
  const auto from = random_vector<float>(100, 1);
  Tensor<float, 1, B> there(100);
  std::vector<float> back(100);
  B::from_host(ctx, 100, from.data(), there.data());
  B::to_host(ctx, 100, std::as_const(there).data(), back.data());
  CHECK(back == from);
  B::to_host(ctx, 0, static_cast<const float*>(nullptr), static_cast<float*>(nullptr));
  B::from_host(ctx, 0, static_cast<const float*>(nullptr), static_cast<float*>(nullptr));
}

namespace {

/// A backend with a type Multiplied (bfloat16 for float). It has no other members than those that experts need for this
/// type.
struct Rounding {
  static constexpr bool is_host = true;
  template <class T>
  using Multiplied = std::conditional_t<std::is_same_v<T, float>, Bfloat16, T>;
  struct Context {
    int live = 0;
    std::vector<const void*> rows, rooms, factors, weights;
  };
  struct Scope {
    Context& ctx;
    explicit Scope(Context& c) : ctx(c) { ++ctx.live; }
    ~Scope() { --ctx.live; }
  };
  template <class C>
  static Scope rounded_once(Context& ctx, const Groups<Rounding>&, View<const float, 2, Rounding> a,
                            View<C, 2, Rounding> room) {
    ctx.rows.push_back(a.data());
    ctx.rooms.push_back(room.data());
    return Scope(ctx);
  }
  template <std::size_t Terms>
  static void grouped_gemms(Context& ctx, Groups<Rounding>,
                            const std::array<View<const Bfloat16, 2, Rounding>, Terms>& a,
                            const std::array<View<const float, 3, Rounding>, Terms>& w, bool transpose,
                            View<float, 2, Rounding>) {
    CHECK(transpose);
    for (const auto& factor : a) ctx.factors.push_back(factor.data());
    for (const auto& weight : w) ctx.weights.push_back(weight.data());
  }
};

}  // namespace

TEST_CASE("sum of two grouped products: equals its definition") {
  Cpu::Context ctx(1);
  const Index slots = 7, depth = 5, columns = 3;
  const std::vector<Index> offsets{1, 4, 4, 6};
  const auto a = uniform_tensor<double>(ctx, Seed{1}, 1, slots, depth),
             b = uniform_tensor<double>(ctx, Seed{2}, 1, slots, depth);
  const auto w = uniform_tensor<double>(ctx, Seed{3}, 1, Index(3), columns, depth),
             v = uniform_tensor<double>(ctx, Seed{4}, 1, Index(3), columns, depth);
  Tensor<double, 2, Cpu> c = constant_tensor<double>(ctx, -77, slots, columns);
  const Groups<Cpu> groups{{offsets.data(), Index(4)}, {}, slots};
  sum_of_two_products(ctx, groups, a.view(), w.view(), b.view(), v.view(), c.view());
  CHECK(ctx.taken() == 0);
  for (Index e = 0; e < 3; ++e)
    for (Index s = offsets[static_cast<std::size_t>(e)]; s < offsets[static_cast<std::size_t>(e) + 1]; ++s)
      for (Index j = 0; j < columns; ++j) {
        double sum = 0;
        for (Index k = 0; k < depth; ++k) sum += a(s, k) * w(e, j, k) + b(s, k) * v(e, j, k);
        CHECK(c(s, j) == doctest::Approx(sum).epsilon(1e-13));
      }
  for (const Index s : {Index(0), Index(6)})
    for (Index j = 0; j < columns; ++j) CHECK(c(s, j) == -77);
}

TEST_CASE("rounded_once: makes no copy on a backend without rounding") {
  Cpu::Context ctx(1);
  Tensor<float, 2, Cpu> a(2, 3), room = constant_tensor<float>(ctx, 5.f, 2, 3);
  const std::vector<Index> offsets{0, 2};
  {
    const auto once =
        rounded_once(ctx, Groups<Cpu>{{offsets.data(), Index(2)}, {}, 2}, std::as_const(a).view(), room.view());
  }
  for (Index i = 0; i < 6; ++i) CHECK(room.data()[i] == 5);
}

TEST_CASE("rounded_once: calls the backend that defines Multiplied") {
  Rounding::Context ctx;
  float rows[2] = {}, room[2] = {}, w[1] = {}, v[1] = {};
  Bfloat16 a[2] = {}, b[2] = {};
  const Groups<Rounding> groups{};
  {
    const auto once =
        rounded_once(ctx, groups, View<const float, 2, Rounding>{rows, 2, 1}, View<float, 2, Rounding>{room, 2, 1});
    CHECK(ctx.live == 1);
  }
  CHECK(ctx.live == 0);
  CHECK(ctx.rows == std::vector<const void*>{rows});
  CHECK(ctx.rooms == std::vector<const void*>{room});
  const View<const Bfloat16, 2, Rounding> first{a, 2, 1}, second{b, 2, 1};
  const View<const float, 3, Rounding> of_first{w, 1, 1, 1}, of_second{v, 1, 1, 1};
  sum_of_two_products(ctx, groups, first, of_first, second, of_second, View<float, 2, Rounding>{room, 2, 1});
  CHECK(ctx.factors == std::vector<const void*>{a, b});
  CHECK(ctx.weights == std::vector<const void*>{w, v});
}

TEST_CASE("RoundedFloats: rounds float to bfloat16 and keeps double") {
  CHECK(std::is_same_v<AsTheyAre::Of<float>, float>);
  CHECK(std::is_same_v<AsTheyAre::Of<double>, double>);
  CHECK(std::is_same_v<RoundedFloats::Of<float>, Bfloat16>);
  CHECK(std::is_same_v<RoundedFloats::Of<double>, double>);
}
