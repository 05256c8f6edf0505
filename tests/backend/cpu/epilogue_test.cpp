#include "gatefold/backend/cpu/epilogue.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "support/naive.hpp"

using namespace gatefold;

namespace {

/// Returns 2 v + e + 10 s + 100 j for element (s, j) of expert e.
template <class T>
struct Place {
  std::vector<T> columns = std::vector<T>(300);  // 100 j
  template <class A>
  typename A::Value operator()(const A& at, Index e, Index s, Index j, typename A::Value v) const {
    return (v + v) + (at.load(&columns[static_cast<std::size_t>(j)]) + T(e + 10 * s));
  }
};
template <class T>
struct PlaceScalar : Place<T> {
  static constexpr bool scalar_only = true;
};
/// v - 2 w
struct Difference {
  template <class A>
  typename A::Value operator()(const A&, Index, Index, Index, typename A::Value v, typename A::Value w) const {
    return v - (w + w);
  }
};

/// Returns true if hidden[i, x] = value(first sum, second sum, i, x) for every row i and column x, and if no other
/// element changed.
template <class T, std::size_t M, class E, class F>
bool gives(const E& epilogue, Index rows, Index columns, const F& value) {
  constexpr Index width = cpu::Tile<T>::columns, stride = cpu::Tile<T>::stride;
  const Index panels = (columns + width - 1) / width, size = rows * panels * width;
  const auto first = naive::random_vector<T>(size, 1), second = naive::random_vector<T>(size, 2);
  const T* sums[] = {first.data(), second.data()};
  std::vector<T> hidden(static_cast<std::size_t>(rows * stride), T(7));
  const auto erased = cpu::HiddenEpilogue<T>::template with<M>(epilogue);
  erased.run(erased.epilogue, sums, cpu::SumsLayout::panels(rows, width), rows, columns, 4, 20, 6, hidden.data());
  for (Index i = 0; i < rows; ++i)
    for (Index x = 0; x < stride; ++x) {
      const auto from = static_cast<std::size_t>(x / width * rows * width + i * width + x % width);
      const T expected = x < columns ? value(first[from], second[from], i, x) : T(7);
      if (hidden[static_cast<std::size_t>(i * stride + x)] != expected) return false;
    }
  return true;
}

// A user's activation that takes scalars only.
struct ScalarOnly {
  static constexpr bool scalar_only = true;
  template <class A>
  typename A::Value operator()(const A& at, Index e, Index s, Index j, typename A::Value v) const {
    (void)at;
    return std::floor(v) + static_cast<typename A::Value>(100 * e + 10 * s + j);
  }
};

}  // namespace

TEST_CASE_TEMPLATE("HiddenEpilogue: writes every element once, at its place only", T, float, double) {
  Place<T> place;
  for (std::size_t j = 0; j < place.columns.size(); ++j) place.columns[j] = T(100 * j);
  PlaceScalar<T> scalar;
  scalar.columns = place.columns;
  const auto at = [](T v, T, Index i, Index x) { return (v + v) + (T(100 * (6 + x)) + T(4 + 10 * (20 + i))); };
  const auto difference = [](T v, T w, Index, Index) { return v - (w + w); };
  constexpr Index width = cpu::Tile<T>::columns;
  for (const Index rows : {1, 3})
    for (const Index columns : {Index(1), width - 1, width, 2 * width, 2 * width + 3}) {
      CHECK(gives<T, 1>(place, rows, columns, at));
      CHECK(gives<T, 1>(scalar, rows, columns, at));
      CHECK(gives<T, 2>(Difference{}, rows, columns, difference));
    }
}

TEST_CASE_TEMPLATE("run_epilogue: calls a scalar epilogue element by element", T, float, double) {
  static_assert(!cpu::RegisterEpilogue<ScalarOnly, T>);
  static_assert(cpu::RegisterEpilogue<functor::Store, T>);
  constexpr Index width = 64;
  std::vector<T> sums(2 * width, T(0.5)), c(2 * 5, T(-1));
  cpu::run_epilogue(ScalarOnly{}, sums.data(), cpu::SumsLayout{width, width, 0}, 2, 3, 1, 2, 4, c.data(), 5);
  for (Index i = 0; i < 2; ++i)
    for (Index j = 0; j < 5; ++j)
      CHECK(c[static_cast<std::size_t>(i * 5 + j)] == (j < 3 ? T(100 + 20 + 10 * i + 4 + j) : T(-1)));
}

TEST_CASE_TEMPLATE("run_epilogue: reads sums stored in panels", T, float, double) {
  constexpr Index rows = 3, width = 2 * cpu::Register<T>::size, columns = 2 * width + cpu::Register<T>::size + 1,
                  panels = 3;
  // Sets element (i, x) of the sums to 1000 i + x, at the position that the definition of the layout gives.
  std::vector<T> sums(static_cast<std::size_t>(panels * rows * width)),
      c(static_cast<std::size_t>(rows * columns), T(-1));
  for (Index i = 0; i < rows; ++i)
    for (Index x = 0; x < columns; ++x)
      sums[static_cast<std::size_t>((x / width * rows + i) * width + x % width)] = static_cast<T>(1000 * i + x);
  const auto check = [&](const auto& epilogue, T added) {
    cpu::run_epilogue(epilogue, sums.data(), cpu::SumsLayout::panels(rows, width), rows, columns, 0, 0, 0, c.data(),
                      columns);
    for (Index i = 0; i < rows; ++i)
      for (Index x = 0; x < columns; ++x)
        REQUIRE(c[static_cast<std::size_t>(i * columns + x)] ==
                static_cast<T>(1000 * i + x) + added * static_cast<T>(10 * i + x));
  };
  check(functor::Store{}, T(0));
  check(ScalarOnly{}, T(1));
}
