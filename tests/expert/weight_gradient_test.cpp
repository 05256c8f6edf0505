#include "gatefold/expert/weight_gradient.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <limits>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/backend/elementwise.hpp"
#include "gatefold/backend/random_fill.hpp"

using namespace gatefold;

namespace {

/// Cpu, but it notes how gradients of weights were asked for, and counts zeros that are written.
struct Noting : cpu::Primitives<Noting, AsTheyAre> {
  using Primitives = cpu::Primitives<Noting, AsTheyAre>;
  static inline std::vector<bool> added;
  static inline int written = 0;
  static void grouped_outer(Context& ctx, Groups<Noting> g, View<const double, 2, Noting> a,
                            View<const double, 2, Noting> dc, View<double, 3, Noting> dw, bool accumulate,
                            View<const Index, 1, Noting> dc_rows) {
    added.push_back(accumulate);
    Primitives::grouped_outer(ctx, g, a, dc, dw, accumulate, dc_rows);
  }
  static void write_zeros(Context& ctx, void* p, std::size_t bytes) {
    ++written;
    Primitives::write_zeros(ctx, p, bytes);
  }
};

}  // namespace

TEST_CASE("the first gradient into deferred zeros is stored, others are added, as by the equation") {
  Noting::Context ctx(1);
  const Index items = 6, rows = 3, columns = 2;
  const std::vector<Index> offsets{0, 3, 3, 5}, row{4, 0, 2, 5, 4};  // the second expert has no slots
  const Groups<Noting> groups{offsets, row, Index(row.size())};
  const auto a = uniform_tensor<double>(ctx, Seed{1}, 1.0, items, rows),
             dc = uniform_tensor<double>(ctx, Seed{2}, 1.0, Index(row.size()), columns);
  Tensor<double, 3, Noting> grad(3, rows, columns);
  fill(ctx, grad.view(), std::numeric_limits<double>::quiet_NaN());
  set_zero_later(ctx, grad);
  Noting::added.clear();
  Noting::written = 0;
  for (int times = 1; times <= 3; ++times) {
    add_weight_gradient<Noting>(ctx, groups, a.view(), dc.view(), grad);
    for (Index e = 0; e < 3; ++e)
      for (Index i = 0; i < rows; ++i)
        for (Index j = 0; j < columns; ++j) {
          double sum = 0;
          for (Index s = offsets[std::size_t(e)]; s < offsets[std::size_t(e) + 1]; ++s)
            sum += a(row[std::size_t(s)], i) * dc(s, j);
          CHECK(grad(e, i, j) == doctest::Approx(times * sum).epsilon(1e-14));
        }
  }
  CHECK(Noting::added == std::vector<bool>{false, true, true});
  CHECK(Noting::written == 0);
}

TEST_CASE("a gradient that is written already is added to") {
  Noting::Context ctx(1);
  const std::vector<Index> offsets{0, 1}, row{0};
  const auto a = constant_tensor<double>(ctx, 2.0, 1, 1), dc = constant_tensor<double>(ctx, 3.0, 1, 1);
  auto grad = constant_tensor<double>(ctx, 1.0, 1, 1, 1);
  add_weight_gradient<Noting>(ctx, Groups<Noting>{offsets, row, 1}, a.view(), dc.view(), grad);
  CHECK(grad(0, 0, 0) == 7);
}
