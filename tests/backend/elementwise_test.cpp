#include "gatefold/backend/elementwise.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>
#include <utility>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/tensor/tensor.hpp"
#include "support/naive.hpp"

using namespace gatefold;
using naive::random_vector;

namespace {

template <class T>
using Vector = Tensor<T, 1, Cpu>;

template <class T>
Vector<T> tensor(const std::vector<T>& values) {
  Vector<T> t(static_cast<Index>(values.size()));
  for (std::size_t i = 0; i < values.size(); ++i) t.data()[i] = values[i];
  return t;
}

struct Pack {
  std::vector<Vector<float>> parts;
  Tensor<double, 2, Cpu> matrix;
  GATEFOLD_PACK(parts, matrix)
};

}  // namespace

TEST_CASE_TEMPLATE("fill, copy and add functions: write exactly their elements", T, float, double) {
  for (const Index n : {0, 1, 7, 64, 1000, 20000}) {
    Cpu::Context ctx(2);
    const auto a = random_vector<T>(n + 1, 1), b = random_vector<T>(n + 1, 2);
    const Vector<T> x = tensor(a);
    auto first = [n](Vector<T>& t) { return t.view().rows(0, n); };
    Vector<T> filled = tensor(b), copied = tensor(b), less = tensor(b), added = tensor(b), scaled = tensor(b);
    fill(ctx, first(filled), 3);
    copy(ctx, x.view().rows(0, n), first(copied));
    copy_scaled(ctx, T(-0.25), x.view().rows(0, n), first(less));
    add(ctx, x.view().rows(0, n), first(added));
    add_scaled(ctx, T(-0.25), x.view().rows(0, n), first(scaled));
    Index wrong = 0;
    for (Index i = 0; i < n; ++i) {
      const T u = a[static_cast<std::size_t>(i)], v = b[static_cast<std::size_t>(i)];
      wrong += filled(i) != T(3);
      wrong += copied(i) != u;
      wrong += less(i) != -u / 4;
      wrong += added(i) != v + u;
      wrong += !(std::abs(scaled(i) - (v - u / 4)) <= 2 * std::numeric_limits<T>::epsilon());  // may be fused
    }
    CAPTURE(n);
    CHECK(wrong == 0);
    for (const Vector<T>* t : {&filled, &copied, &less, &added, &scaled}) CHECK((*t)(n) == b.back());
  }
}

TEST_CASE("add: works in place") {
  Cpu::Context ctx(1);
  Vector<double> x = tensor<double>({1, -2, 3});
  add(ctx, x.view(), x.view());
  CHECK(x(0) == 2);
  CHECK(x(1) == -4);
  CHECK(x(2) == 6);
}

TEST_CASE_TEMPLATE("copy_columns, add_columns: write only the given columns", T, float, double) {
  for (const int threads : {1, 2})
    for (const Index rows : {0, 1, 5, 300})
      for (const Index count : {0, 1, 7, 40}) {
        Cpu::Context ctx(threads);
        const Index width = count + 3, wide = count + 5;
        const auto a = random_vector<T>(rows * width, 1), b = random_vector<T>(rows * wide, 2);
        Tensor<T, 2, Cpu> from(rows, width), copied(rows, wide), added(rows, wide);
        std::copy(a.begin(), a.end(), from.data());
        std::copy(b.begin(), b.end(), copied.data());
        std::copy(b.begin(), b.end(), added.data());
        copy_columns(ctx, count, from.view(), 1, copied.view(), 4);
        add_columns(ctx, count, from.view(), 1, added.view(), 4);
        Index wrong = 0;
        for (Index n = 0; n < rows; ++n)
          for (Index j = 0; j < wide; ++j) {
            const bool inside = j >= 4 && j < 4 + count;
            const T before = b[static_cast<std::size_t>(n * wide + j)];
            const T value = inside ? a[static_cast<std::size_t>(n * width + j - 3)] : T(0);
            wrong += copied(n, j) != (inside ? value : before);
            wrong += added(n, j) != before + value;
          }
        CAPTURE(threads);
        CAPTURE(rows);
        CAPTURE(count);
        CHECK(wrong == 0);
      }
}

TEST_CASE("elementwise functors: compute their documented formulas") {
  const std::vector<double> a{1, 2, 3}, b{10, 20, 30};
  std::vector<double> x{5, 6, 7}, y(3);
  const OneElement<double> at;
  const functor::Scale<double> scale{-2, x.data()};
  scale(at, 1);
  CHECK(x == std::vector<double>{5, -12, 7});
  const functor::AddScaled<double> add_scaled{0.5, b.data(), x.data()};
  add_scaled(at, 2);
  CHECK(x == std::vector<double>{5, -12, 22});
  const functor::ScaledSum<double> sum{a.data(), 3, b.data(), y.data()};
  sum(at, 0), sum(at, 2);
  CHECK(y == std::vector<double>{31, 0, 93});
  const functor::Copy<double> copy{b.data(), y.data()};
  copy(at, 1);
  CHECK(y == std::vector<double>{31, 20, 93});
  const functor::Fill<double> fill{-1, y.data()};
  fill(at, 0);
  CHECK(y == std::vector<double>{-1, 20, 93});
}

TEST_CASE("set_zero, zeros_like and copy_pack: handle packs of tensors") {
  Cpu::Context ctx(1);
  Pack p;
  p.parts.push_back(tensor<float>({1, 2}));
  p.parts.push_back(tensor<float>({}));
  p.matrix.resize(2, 3);
  fill(ctx, p.matrix, 4);

  Pack zero = zeros_like(ctx, p);
  CHECK(zero.parts.size() == 2);
  CHECK(zero.parts[0].size() == 2);
  CHECK(zero.matrix.extent(1) == 3);
  for_each_tensor(
      [](const Name&, const auto& t) {
        for (Index i = 0; i < t.size(); ++i) CHECK(t.data()[i] == 0);
      },
      zero);
  CHECK(p.matrix(1, 2) == 4);

  copy_pack(ctx, std::as_const(p), zero);
  CHECK(zero.parts[0](1) == 2);
  CHECK(zero.matrix(1, 2) == 4);
  CHECK(zero.matrix.data() != p.matrix.data());

  p.matrix(0, 0) = std::numeric_limits<double>::quiet_NaN();
  set_zero(ctx, p);
  CHECK(p.matrix(0, 0) == 0);
  CHECK(p.parts[0](0) == 0);
  CHECK(zero.matrix(0, 0) == 4);

  Pack other;
  shape_like(other, p);
  other.matrix.resize(2, 4);
  set_zero(ctx, other);
  fill(ctx, p.parts[0].view(), 1);
  CHECK_THROWS_WITH_AS(copy_pack(ctx, std::as_const(p), other), "copy_pack: matrix.extent(1): expected 3, got 4",
                       ArgumentError);
  CHECK(other.parts[0](0) == 0);  // nothing has been written

  auto lone = tensor<float>({1, 2});
  set_zero(ctx, lone);
  CHECK(lone(1) == 0);
  Nothing<float, Cpu> nothing;
  set_zero(ctx, nothing);
}

TEST_CASE_TEMPLATE("for_rows: runs steps in order on each finished row", T, float, double) {
  for (const int threads : {1, 3})
    for (const Index columns : {1, 7, 64, 65}) {
      const Index items = 40;
      Cpu::Context ctx(threads);
      Tensor<T, 2, Cpu> x(items, columns), out(items, columns), log(items, columns), bare(items, columns),
          by_index(items, columns);
      for (Index i = 0; i < x.size(); ++i) x.data()[i] = T(i % 11) / 8;
      for (auto* t : {&out, &log, &bare, &by_index}) fill(ctx, t->view(), 0);
      const auto rows = [](View<T, 2, Cpu> to) {
        return [to](const auto& lanes, Index n) {
          each_column<T>(lanes, to.extent(1), [&](const auto& at, Index j) {
            at.store(to.data() + n * to.extent(1) + j, at.load(to.data() + n * to.extent(1) + j) + T(n + 1));
          });
        };
      };
      // Adds 2 out to log, then x to out.
      const functor::InTurn step{functor::AddScaled<T>{T(2), out.data(), log.data()},
                                 functor::AddScaled<T>{T(1), x.data(), out.data()}};
      for_rows(ctx, out.view(), rows(out.view()), step);
      for_rows(ctx, bare.view(), rows(bare.view()), functor::NoStep<T>{});
      for_rows(ctx, by_index.view(), rows(by_index.view()),
               [x = x.data(), to = by_index.data()](Index i) { to[i] += x[i]; });
      Index wrong = 0;
      for (Index n = 0; n < items; ++n)
        for (Index j = 0; j < columns; ++j)
          wrong += log(n, j) != T(2 * (n + 1)) || out(n, j) != T(n + 1) + x(n, j) || bare(n, j) != T(n + 1) ||
                   by_index(n, j) != out(n, j);
      CAPTURE(threads);
      CAPTURE(columns);
      CHECK(wrong == 0);
    }
}
