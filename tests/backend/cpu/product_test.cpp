#include "gatefold/backend/cpu/product.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <thread>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/backend/cpu/packet.hpp"
#include "gatefold/backend/cpu/tile.hpp"
#include "gatefold/backend/cpu/words.hpp"
#include "gatefold/tensor/tensor.hpp"
#include "support/naive.hpp"
#include "support/slow_build.hpp"

using namespace gatefold;

namespace {

template <class T>
using Vector = std::vector<T>;
using Size = std::size_t;

template <class T>
View<const T, 2, Cpu> view(const Vector<T>& x, Index rows, Index columns) {
  return {x.data(), rows, columns};
}

template <class T>
bool same_bits(const Vector<T>& a, const Vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

// Returns a bound on the rounding of a sum of `depth` products of numbers in [-1, 1].
template <class T>
double tolerance(Index depth) {
  return std::numeric_limits<T>::epsilon() * static_cast<double>(8 + depth);
}

// NaN fills elements that a product must not read.
template <class T>
constexpr T kNone = std::numeric_limits<T>::quiet_NaN();

// c = 2 v + bias[e, j]; the sum itself goes to a second tensor.
template <class T>
struct BiasAndKeep {
  View<const T, 2, Cpu> bias;
  View<T, 2, Cpu> kept;

  template <class A>
  typename A::Value operator()(const A& at, Index e, Index s, Index j, typename A::Value v) const {
    at.store(&kept(s, j), at.load(&kept(s, j)) + v);  // adds, so that a second call for the same element shows
    return 2 * v + at.load(&bias(e, j));
  }
};

struct ScalarOnly {
  static constexpr bool scalar_only = true;
  template <class A>
  typename A::Value operator()(const A&, Index, Index, Index j, typename A::Value v) const {
    return std::fmax(v, static_cast<typename A::Value>(j % 2));
  }
};

template <class T>
struct GroupedCase {
  naive::Slots slots;
  Index items, depth, columns;
  Vector<T> x, w, bias;

  GroupedCase(const Vector<Index>& counts, Index items_, Index depth_, Index columns_)
      : slots(counts, items_, 11),
        items(items_),
        depth(depth_),
        columns(columns_),
        x(naive::random_vector<T>(items * depth, 12)),
        w(naive::random_vector<T>(slots.experts() * depth * columns, 13)),
        bias(naive::random_vector<T>(slots.experts() * columns, 14)) {}

  Groups<Cpu> groups() const { return {slots.offsets, slots.rows, slots.count() + 3}; }

  // c has three rows after the last slot. The product must not touch these rows.
  Vector<T> run(int threads, bool transpose, Vector<T>* kept = nullptr) const {
    Cpu::Context ctx(threads, true);
    Vector<T> c(static_cast<Size>((slots.count() + 3) * columns), kNone<T>), keep(c.size(), T(0));
    const Index E = slots.experts();
    Cpu::grouped_gemm<T>(ctx, groups(), view(x, items, depth),
                         transpose ? View<const T, 3, Cpu>(w.data(), E, columns, depth)
                                   : View<const T, 3, Cpu>(w.data(), E, depth, columns),
                         transpose, {c.data(), slots.count() + 3, columns},
                         BiasAndKeep<T>{view(bias, E, columns), {keep.data(), slots.count() + 3, columns}});
    if (kept) *kept = keep;
    return c;
  }

  double value(Index e, Index s, Index j, bool transpose) const {
    const naive::Matrix<T> a{x.data() + slots.rows[static_cast<Size>(s)] * depth, depth};
    return naive::dot<T>(a, 0, {w.data() + e * depth * columns, transpose ? depth : columns, transpose}, j, depth);
  }
};

const Vector<Vector<Index>> kCounts{{0}, {1}, {5, 0, 1, 30}, {0, 0, 2, 9, 8, 0}, {100}, {14, 15, 13, 28, 29}};

}  // namespace

TEST_CASE_TEMPLATE("gemm: equals a loop for odd shapes, transposes, accumulation", T, float, double) {
  const Index shapes[][3] = {{0, 4, 4},    {4, 0, 4},     {4, 4, 0},     {1, 1, 1},    {1, 300, 70},
                             {2, 7, 33},   {3, 257, 1},   {9, 16, 31},   {13, 64, 17}, {17, 513, 65},
                             {29, 3, 100}, {97, 255, 40}, {100, 31, 300}};
  for (const auto& [rows, depth, columns] : shapes)
    for (const int flags : {0, 1, 2, 3, 4, 5, 6, 7}) {
      const bool ta = flags & 1, tb = flags & 2, accumulate = flags & 4;
      Cpu::Context ctx(2, true);
      const auto a = naive::random_vector<T>(rows * depth, 1), b = naive::random_vector<T>(depth * columns, 2);
      auto before = naive::random_vector<T>(rows * columns + 8, 3);
      Vector<T> c = before;
      Cpu::gemm<T>(ctx, ta ? view(a, depth, rows) : view(a, rows, depth), ta,
                   tb ? view(b, columns, depth) : view(b, depth, columns), tb, accumulate, {c.data(), rows, columns},
                   functor::Store{});
      double worst = 0;
      for (Index i = 0; i < rows; ++i)
        for (Index j = 0; j < columns; ++j) {
          const Size at = static_cast<Size>(i * columns + j);
          const double sum =
              naive::dot<T>({a.data(), ta ? rows : depth, ta}, i, {b.data(), tb ? depth : columns, tb}, j, depth);
          const double error =
              std::abs(sum + (accumulate ? static_cast<double>(before[at]) : 0) - static_cast<double>(c[at]));
          worst = error <= worst ? worst : error;
        }
      CHECK(worst <= tolerance<T>(depth));
      CHECK(std::equal(c.end() - 8, c.end(), before.end() - 8));
    }
}

TEST_CASE_TEMPLATE("grouped_gemm: equals loops for gathered rows and empty experts", T, float, double) {
  for (const auto& counts : kCounts)
    for (const Index depth : {0, 1, 40, 300})
      for (const Index columns : {1, 33, 140})
        for (const bool transpose : {false, true}) {
          const GroupedCase<T> g(counts, 23, depth, columns);
          Vector<T> kept;
          const Vector<T> c = g.run(2, transpose, &kept);
          double worst = 0;
          for (Index e = 0; e < g.slots.experts(); ++e)
            for (Index s = g.slots.offsets[static_cast<Size>(e)]; s < g.slots.offsets[static_cast<Size>(e) + 1]; ++s)
              for (Index j = 0; j < columns; ++j) {
                const double v = g.value(e, s, j, transpose);
                const double error =
                    std::max(std::abs(static_cast<double>(kept[static_cast<Size>(s * columns + j)]) - v),
                             std::abs(static_cast<double>(c[static_cast<Size>(s * columns + j)]) - 2 * v -
                                      static_cast<double>(g.bias[static_cast<Size>(e * columns + j)])));
                worst = error <= worst ? worst : error;
              }
          CHECK(worst <= 3 * tolerance<T>(depth));
          for (Index i = 0; i < 3 * columns; ++i) {
            CHECK(std::isnan(*(c.end() - 1 - i)));
            CHECK(*(kept.end() - 1 - i) == T(0));
          }
        }
}

TEST_CASE_TEMPLATE("grouped_gemm: has the same bits for any number of threads" * doctest::skip(support::slow_build), T,
                   float, double) {
  for (const bool transpose : {false, true}) {
    // With one thread, a task has several blocks of columns and several blocks of the depth.
    const GroupedCase<T> g({3, 150, 0, 40, 1}, 50, 530, 290);
    const Vector<T> one = g.run(1, transpose);
    for (const int threads : {2, 3, 8}) CHECK(same_bits(one, g.run(threads, transpose)));
  }
}

TEST_CASE_TEMPLATE("gemm: a row's bits do not depend on other rows" * doctest::skip(support::slow_build), T, float,
                   double) {
  // A depth of 530 crosses two boundaries of chains. The row counts include those that read weights in place and those
  // that pack them.
  const Index depth = 530, columns = 83, most = 120;
  const auto a = naive::random_vector<T>(most * depth, 21), b = naive::random_vector<T>(depth * columns, 22);
  const auto start = naive::random_vector<T>(most * columns, 23);
  Vector<T> at(static_cast<Size>(columns * depth));
  for (Index k = 0; k < depth; ++k)
    for (Index j = 0; j < columns; ++j) at[static_cast<Size>(j * depth + k)] = b[static_cast<Size>(k * columns + j)];
  for (const bool accumulate : {false, true}) {
    Cpu::Context ctx(2, true);
    const auto run = [&](Index first, Index rows, bool tb) {
      Vector<T> c(start.begin() + first * columns, start.begin() + (first + rows) * columns);
      Cpu::gemm<T>(ctx, {a.data() + first * depth, rows, depth}, false,
                   tb ? view(at, columns, depth) : view(b, depth, columns), tb, accumulate, {c.data(), rows, columns},
                   functor::Store{});
      return c;
    };
    const Vector<T> all = run(0, most, false);
    CHECK(same_bits(all, run(0, most, true)));
    for (const Index rows : {1, 2, 3, 4, 7, 8, 9, 14, 15, 50})
      for (const Index first : {Index(0), Index(5), most - rows})
        for (const bool tb : {false, true})
          CHECK(same_bits(run(first, rows, tb),
                          Vector<T>(all.begin() + first * columns, all.begin() + (first + rows) * columns)));
  }
}

TEST_CASE_TEMPLATE("gemm: a column's bits do not depend on other columns", T, float, double) {
  const Index depth = 300, columns = 150;
  for (const Index rows : {3, 40}) {
    Cpu::Context ctx(2, true);
    const auto a = naive::random_vector<T>(rows * depth, 31), b = naive::random_vector<T>(columns * depth, 32);
    const auto run = [&](Index first, Index count) {
      Vector<T> c(static_cast<Size>(rows * count));
      Cpu::gemm<T>(ctx, view(a, rows, depth), false, {b.data() + first * depth, count, depth}, true, false,
                   {c.data(), rows, count}, functor::Store{});
      return c;
    };
    const Vector<T> all = run(0, columns);
    for (const Index first : {0, 1, 17, 100})
      for (const Index count : {1, 5, 31, 50}) {
        const Vector<T> part = run(first, count);
        int wrong = 0;
        for (Index i = 0; i < rows; ++i)
          wrong += std::memcmp(&part[static_cast<Size>(i * count)], &all[static_cast<Size>(i * columns + first)],
                               static_cast<Size>(count) * sizeof(T)) != 0;
        CHECK(wrong == 0);
      }
  }
}

TEST_CASE_TEMPLATE("grouped_gemm and gemm: give a row the same bits", T, float, double) {
  const GroupedCase<T> g({2, 60, 0, 11}, 40, 270, 45);
  Vector<T> grouped;
  g.run(2, false, &grouped);
  Cpu::Context ctx(1);
  for (Index e = 0; e < g.slots.experts(); ++e)
    for (Index s = g.slots.offsets[static_cast<Size>(e)]; s < g.slots.offsets[static_cast<Size>(e) + 1]; ++s) {
      Vector<T> c(static_cast<Size>(g.columns));
      Cpu::gemm<T>(ctx, {g.x.data() + g.slots.rows[static_cast<Size>(s)] * g.depth, 1, g.depth}, false,
                   {g.w.data() + e * g.depth * g.columns, g.depth, g.columns}, false, false, {c.data(), 1, g.columns},
                   functor::Store{});
      CHECK(std::memcmp(c.data(), grouped.data() + s * g.columns, c.size() * sizeof(T)) == 0);
    }
}

TEST_CASE_TEMPLATE("grouped_outer: adds to dw, any threads give equal bits", T, float, double) {
  for (const auto& counts : {Vector<Index>{0, 1, 0, 300, 4}, Vector<Index>{4500}, Vector<Index>{0}}) {
    const Index items = 31, rows = 37, columns = 41;
    const naive::Slots slots(counts, items, 41);
    const auto a = naive::random_vector<T>(items * rows, 42);
    auto dc = naive::random_vector<T>((slots.count() + 2) * columns, 43);
    std::fill(dc.end() - 2 * columns, dc.end(), kNone<T>);
    const auto before = naive::random_vector<T>(slots.experts() * rows * columns, 44);
    Vector<T> first;
    for (const int threads : {1, 2, 3, 8}) {
      Cpu::Context ctx(threads, true);
      Vector<T> dw = before;
      Cpu::grouped_outer<T>(ctx, {slots.offsets, slots.rows, slots.count() + 2}, view(a, items, rows),
                            view(dc, slots.count() + 2, columns), {dw.data(), slots.experts(), rows, columns});
      if (threads > 1) {
        CHECK(same_bits(first, dw));
        continue;
      }
      first = dw;
      double worst = 0;
      for (Index e = 0; e < slots.experts(); ++e)
        for (Index i = 0; i < rows; ++i)
          for (Index j = 0; j < columns; ++j) {
            const Size at = static_cast<Size>((e * rows + i) * columns + j);
            double sum = static_cast<double>(before[at]);
            for (Index s = slots.offsets[static_cast<Size>(e)]; s < slots.offsets[static_cast<Size>(e) + 1]; ++s)
              sum += static_cast<double>(a[static_cast<Size>(slots.rows[static_cast<Size>(s)] * rows + i)]) *
                     static_cast<double>(dc[static_cast<Size>(s * columns + j)]);
            const double error = std::abs(sum - static_cast<double>(dw[at]));
            worst = error <= worst ? worst : error;
          }
      CHECK(worst <= 4 * tolerance<T>(slots.count()));
    }
  }
}

TEST_CASE_TEMPLATE("gemm: accepts a scalar epilogue", T, float, double) {
  for (const Index rows : {3, 20}) {
    const Index depth = 10, columns = 37;
    Cpu::Context ctx(1);
    const auto a = naive::random_vector<T>(rows * depth, 51), b = naive::random_vector<T>(depth * columns, 52);
    Vector<T> c(static_cast<Size>(rows * columns)), plain = c;
    Cpu::gemm<T>(ctx, view(a, rows, depth), false, view(b, depth, columns), false, false, {c.data(), rows, columns},
                 ScalarOnly{});
    Cpu::gemm<T>(ctx, view(a, rows, depth), false, view(b, depth, columns), false, false, {plain.data(), rows, columns},
                 functor::Store{});
    for (Index i = 0; i < rows * columns; ++i)
      CHECK(c[static_cast<Size>(i)] == std::fmax(plain[static_cast<Size>(i)], static_cast<T>(i % columns % 2)));
  }
}

TEST_CASE("grouped_gemm: computes only the slots of a range of experts") {
  Vector<Index> counts(257, 0);
  counts[3] = 4;
  counts[100] = 40;
  counts[256] = 2;
  const GroupedCase<float> g(counts, 9, 20, 19);
  const Vector<float> all = g.run(2, false);
  Cpu::Context ctx(2, true);
  Vector<float> c(all.size(), kNone<float>);
  Cpu::grouped_gemm<float>(ctx, g.groups().experts(50, 207), view(g.x, 9, 20), {g.w.data() + 50 * 20 * 19, 207, 20, 19},
                           false, {c.data(), g.slots.count() + 3, 19},
                           functor::AddBias<float, Cpu>{{g.bias.data() + 50 * 19, 207, 19}});
  for (Index i = 0; i < 4 * 19; ++i) CHECK(std::isnan(c[static_cast<Size>(i)]));
  double worst = 0;
  for (Index s = 4; s < 46; ++s)
    for (Index j = 0; j < 19; ++j) {
      const Index e = s < 44 ? 100 : 256;
      const double error =
          std::abs(g.value(e, s, j, false) + static_cast<double>(g.bias[static_cast<Size>(e * 19 + j)]) -
                   static_cast<double>(c[static_cast<Size>(s * 19 + j)]));
      worst = error <= worst ? worst : error;
    }
  CHECK(worst <= 2 * tolerance<float>(20));
}

TEST_CASE("gemm: splitting a deep product does not change its bits") {
  // In some cases each task packs columns of b, in others the tasks share packed columns. Some sums are formed in c.
  for (const auto& [rows, depth, columns] :
       {std::array<Index, 3>{1, 4096 + 300, 9}, {20, 4096 + 300, 9}, {200, 1400, 70}})
    for (const bool transpose : {false, true}) {
      Cpu::Context ctx(2, true);
      const auto a = naive::random_vector<float>(rows * depth, 61),
                 b = naive::random_vector<float>(depth * columns, 62);
      Vector<float> whole(static_cast<Size>(rows * columns)), parts = whole;
      Cpu::gemm<float>(ctx, transpose ? view(a, depth, rows) : view(a, rows, depth), transpose, view(b, depth, columns),
                       false, false, {whole.data(), rows, columns}, functor::Store{});
      for (Index k = 0; k < depth; k += 256) {
        const Index n = std::min<Index>(256, depth - k);
        Vector<float> ak;
        for (Index i = 0; i < rows; ++i)
          for (Index x = k; x < k + n; ++x)
            ak.push_back(a[static_cast<Size>(transpose ? x * rows + i : i * depth + x)]);
        Cpu::gemm<float>(ctx, view(ak, rows, n), false, {b.data() + k * columns, n, columns}, false, k > 0,
                         {parts.data(), rows, columns}, functor::Store{});
      }
      CHECK(same_bits(whole, parts));
    }
}

TEST_CASE("grouped_gemm: applies an epilogue once for any depth") {
  const Index depth = 4096 + 300, columns = 9;
  Cpu::Context ctx(2, true);
  for (const Index rows : {1, 20}) {
    const auto a = naive::random_vector<float>(rows * depth, 61), b = naive::random_vector<float>(depth * columns, 62),
               bias = naive::random_vector<float>(columns, 63);
    const std::vector<Index> offsets{0, rows};
    Vector<float> plain(static_cast<Size>(rows * columns)), biased = plain;
    Cpu::gemm<float>(ctx, view(a, rows, depth), false, view(b, depth, columns), false, false,
                     {plain.data(), rows, columns}, functor::Store{});
    Cpu::grouped_gemm<float>(ctx, {offsets, {}, rows}, view(a, rows, depth), {b.data(), 1, depth, columns}, false,
                             {biased.data(), rows, columns}, functor::AddBias<float, Cpu>{{bias.data(), 1, columns}});
    for (Index i = 0; i < rows * columns; ++i)
      CHECK(biased[static_cast<Size>(i)] == plain[static_cast<Size>(i)] + bias[static_cast<Size>(i % columns)]);
  }
}

TEST_CASE("grouped_gemm: deep products read prepacked weights") {
  const Index depth = 4096 + 300, columns = 9, experts = 2;
  for (const Index rows : {1, 20}) {
    Cpu::Context ctx(2, true);
    const auto a = naive::random_vector<float>(experts * rows * depth, 61),
               w = naive::random_vector<float>(experts * depth * columns, 62);
    const std::vector<Index> offsets{0, rows, 2 * rows};
    const auto run = [&] {
      Vector<float> c(static_cast<Size>(2 * rows * columns));
      Cpu::grouped_gemm<float>(ctx, {offsets, {}, 2 * rows}, view(a, 2 * rows, depth),
                               {w.data(), experts, depth, columns}, false, {c.data(), 2 * rows, columns},
                               functor::Store{});
      return c;
    };
    const Vector<float> plain = run();
    cpu::PackedWeights packed;
    packed.add<float>(ctx, w.data(), experts, depth, columns, Weights::unchanged);
    const auto use = ctx.use(packed);
    CHECK(same_bits(run(), plain));
  }
}

TEST_CASE("grouped_gemm: the memory limit for packed weights changes no bits") {
  // With transposed weights and so many rows, several tasks share packed weights.
  const GroupedCase<float> g({200, 3, 180, 0, 400}, 50, 300, 170);
  Vector<float> c[2];
  for (const int waves : {0, 1}) {
    Cpu::Context ctx(2, true);
    c[waves].resize(static_cast<Size>(g.slots.count() * g.columns));
    const cpu::Batch<float> batch{.all = {.a = {g.x.data(), g.depth, true, g.slots.rows.data()},
                                          .b = {g.w.data(), g.depth, true},
                                          .c = c[waves].data(),
                                          .c_stride = g.columns,
                                          .rows = 0,
                                          .columns = g.columns,
                                          .depth = g.depth,
                                          .first = 0},
                                  .slots = cpu::Batch<float>::Slots::are_rows,
                                  .offsets = g.slots.offsets.data(),
                                  .experts = g.slots.experts()};
    const functor::Store store{};
    const auto epilogue = cpu::Epilogue<float>::with(store);
    if (waves)
      cpu::Product<float>::run(ctx, batch, epilogue, 1);
    else
      cpu::Product<float>::run(ctx, batch, epilogue);
  }
  CHECK(same_bits(c[0], c[1]));
  Vector<float> kept;
  g.run(1, true, &kept);
  CHECK(std::memcmp(c[1].data(), kept.data(), c[1].size() * sizeof(float)) == 0);
}

TEST_CASE("grouped_gemm: allocates scratch only on the first call") {
  const GroupedCase<float> g({50, 3, 0, 70}, 30, 300, 90);
  Cpu::Context ctx(2, true);
  Vector<float> c(static_cast<Size>((g.slots.count() + 3) * g.columns));
  const auto run = [&] {
    Cpu::grouped_gemm<float>(ctx, g.groups(), view(g.x, g.items, g.depth), {g.w.data(), 4, g.depth, g.columns}, false,
                             {c.data(), g.slots.count() + 3, g.columns}, functor::Store{});
  };
  run();
  const std::size_t capacity = ctx.capacity();
  for (int i = 0; i < 3; ++i) run();
  CHECK(ctx.capacity() == capacity);
}

TEST_CASE("grouped_gemm: two threads can run with separate contexts") {
  const GroupedCase<float> g({50, 3, 0, 70}, 30, 300, 90);
  const Vector<float> expected = g.run(1, false);
  bool same[2] = {true, true};
  const auto run = [&](int i) {
    for (int r = 0; r < 5; ++r) {
      const Vector<float> c = g.run(2, false);
      same[i] = same[i] && same_bits(c, expected);
    }
  };
  std::thread a(run, 0), b(run, 1);
  a.join();
  b.join();
  CHECK(same[0]);
  CHECK(same[1]);
}

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

TEST_CASE_TEMPLATE("rank_update: stores a sum of -0 as 0", T, float, double) {
  constexpr Index columns = 9 * cpu::Register<T>::size;
  const T least = std::numeric_limits<T>::min();
  const std::vector<T> a(1, -least), b(columns, least);  // the product of a and b underflows to -0
  for (const auto into : {cpu::Into::store, cpu::Into::stream}) {
    Tensor<T, 1, Cpu> c(columns);
    std::fill_n(c.data(), columns, T(5));
    cpu::rank_update<T>({a.data(), 1, false}, 0, 1, {b.data(), columns, false}, 0, columns, 1, into, c.data(), columns);
    cpu::packet::end_of_stream();
    for (Index j = 0; j < columns; ++j) CHECK((c(j) == 0 && !std::signbit(c(j))));
  }
}
