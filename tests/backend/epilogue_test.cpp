#include "gatefold/backend/epilogue.hpp"

#include <doctest/doctest.h>

#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"

using namespace gatefold;

namespace {

using Matrix = View<const double, 2, Cpu>;

/// A made-up register of two neighbouring columns. It has only the operation + that the epilogues in this file use.
struct Two {
  double v[2];
  friend Two operator+(Two a, Two b) { return {{a.v[0] + b.v[0], a.v[1] + b.v[1]}}; }
};
struct TwoElements {
  using Value = Two;
  Two load(const double* p) const { return {{p[0], p[1]}}; }
  void store(double* p, Two v) const { p[0] = v.v[0], p[1] = v.v[1]; }
};

}  // namespace

TEST_CASE("OneElement: reads and writes one value") {
  float x[2] = {1, 2};
  const OneElement<float> at;
  CHECK(at.load(x + 1) == 2);
  at.store(x, 5);
  CHECK(x[0] == 5);
  CHECK(x[1] == 2);
}

TEST_CASE("Store: returns v") {
  CHECK(functor::Store{}(OneElement<double>{}, 3, 4, 5, 2.5) == 2.5);
  const Two v = functor::Store{}(TwoElements{}, 3, 4, 5, Two{{1, 2}});
  CHECK(v.v[1] == 2);
}

TEST_CASE("AddBias: returns v + bias[e, j] for any row") {
  const std::vector<double> bias{1, 2, 3, 10, 20, 30};
  const functor::AddBias<double, Cpu> add{Matrix(bias.data(), 2, 3)};
  for (Index e = 0; e < 2; ++e)
    for (Index j = 0; j < 3; ++j)
      for (const Index row : {0, 1, 100})
        CHECK(add(OneElement<double>{}, e, row, j, 0.5) == 0.5 + bias[static_cast<std::size_t>(3 * e + j)]);
  const Two v = add(TwoElements{}, 1, 7, 1, Two{{100, 200}});
  CHECK(v.v[0] == 120);
  CHECK(v.v[1] == 230);
}

TEST_CASE("AddTo: returns v + addend[s, j] for any expert") {
  const std::vector<double> addend{1, 2, 3, 10, 20, 30};
  const functor::AddTo<double, Cpu> add{Matrix(addend.data(), 2, 3)};
  for (Index s = 0; s < 2; ++s)
    for (Index j = 0; j < 3; ++j)
      for (const Index e : {0, 9})
        CHECK(add(OneElement<double>{}, e, s, j, -1.0) == addend[static_cast<std::size_t>(3 * s + j)] - 1);
  const Two v = add(TwoElements{}, 0, 1, 0, Two{{100, 200}});
  CHECK(v.v[0] == 110);
  CHECK(v.v[1] == 220);
}
