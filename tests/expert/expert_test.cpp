#include "gatefold/expert/expert.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <cstring>
#include <limits>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/backend/elementwise.hpp"
#include "gatefold/backend/initial_values.hpp"
#include "gatefold/check/conformance.hpp"
#include "gatefold/expert/gated_mlp.hpp"
#include "gatefold/expert/linear.hpp"
#include "gatefold/expert/mlp.hpp"
#include "gatefold/gate/composed_gate.hpp"
#include "gatefold/layer/mixture.hpp"
#include "gatefold/update/plain.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

/// An expert of a user: z = x ⊙ scale_e.
struct Scale {
  Index model_dim = 0;

  template <class T, class B>
  struct Params {
    Tensor<T, 2, B> scale;  // [E, D]
    GATEFOLD_PACK(scale)
  };
  Index in_dim() const { return model_dim; }
  Index out_dim() const { return model_dim; }
  template <class T, class B>
  Params<T, B> init(typename B::Context& ctx, Index experts, Seed seed) const {
    return {uniform_tensor<T>(ctx, seed, 1, experts, model_dim)};
  }
  template <class T, class B>
  void forward(typename B::Context&, const Params<T, B>& p, Groups<B> groups, In<T, 2, B> x, Out<T, 2, B> z,
               Nothing<T, B>&) const {
    for (Index s = 0; s < groups.slots; ++s)
      if (const Index e = groups.expert(s); e >= 0)
        for (Index d = 0; d < model_dim; ++d) z(s, d) = x(groups.row(s), d) * p.scale(e, d);
  }
  template <class T, class B>
  void backward(typename B::Context&, const Params<T, B>& p, Groups<B> groups, In<T, 2, B> x, const Nothing<T, B>&,
                In<T, 2, B> dz, Out<T, 2, B> dslots, Params<T, B>& grads) const {
    for (Index s = 0; s < groups.slots; ++s)
      if (const Index e = groups.expert(s); e >= 0)
        for (Index d = 0; d < model_dim; ++d) {
          dslots(s, d) = dz(s, d) * p.scale(e, d);
          grads.scale(e, d) += dz(s, d) * x(groups.row(s), d);
        }
  }
};

}  // namespace

TEST_CASE("Expert: the concept accepts only experts") {
  CHECK(detail_::policy::Expert<Linear, float, Cpu>);
  CHECK(detail_::policy::Expert<Mlp<Gelu>, double, Cpu>);
  CHECK(detail_::policy::Expert<GatedMlp<Silu>, float, Cpu>);
  CHECK(detail_::policy::Expert<Scale, double, Cpu>);
  CHECK(detail_::policy::check_expert<Scale, double, Cpu>());
  CHECK_FALSE(detail_::policy::Expert<SoftmaxTopK, float, Cpu>);
  CHECK_FALSE(detail_::policy::Expert<update::Plain, float, Cpu>);
  CHECK_FALSE(detail_::policy::ExpertTypes<int, float, Cpu>);
}

TEST_CASE("Expert: a user-defined expert works in a mixture") {
  Cpu::Context ctx(1);
  const Mixture mixture{SoftmaxTopK{.scores = {.experts = 3}, .selection = {.k = 1}}, Scale{.model_dim = 4}};
  auto p = pass<double>(ctx, mixture, 6);
  p.forward();
  for (Index n = 0; n < 6; ++n)
    for (Index d = 0; d < 4; ++d)
      CHECK(p.y(n, d) == p.x(n, d) * p.params.branch.expert.scale(p.saved.branch.plan.expert(n), d));
  const auto report = check::conformance<Cpu, double>(
      Mixture{SoftmaxTopK{.scores = {.experts = 3}, .selection = {.k = 2}}, Scale{.model_dim = 4}},
      {.items_are_independent = true});
  CHECK_MESSAGE(report, report.str());
}

TEST_CASE("Expert: works without a gate") {
  const auto report = check::conformance<Cpu, double>(Scale{.model_dim = 4}, {.items_are_independent = true});
  CHECK_MESSAGE(report, report.str());
}

namespace {

/// A CPU backend that records the argument `accumulate` of each call of grouped_outer, and counts the calls of
/// write_zeros.
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

/// Together, these shapes use every way to compute a gradient: few and many terms, few rows, narrow and wide matrices,
/// and more than one block in each dimension.
struct Shape {
  Index rows, columns, slots;
};
constexpr Shape shapes[] = {{3, 5, 2},    {40, 33, 7},    {5, 70, 300},   {70, 3, 100},
                            {48, 64, 90}, {130, 96, 600}, {300, 300, 40}, {20, 272, 270}};

/// Checks that storing a gradient gives the same bits as adding it to zeros, also if fma(tiny, -tiny, 0) underflows to
/// -0.
template <class T, class B>
void check_underflow(double scale) {
  for (const int threads : {1, 2})
    for (const Shape& shape : shapes) {
      typename B::Context ctx(threads);
      const std::vector<Index> offsets{0, shape.slots / 3, shape.slots / 3, shape.slots};
      std::vector<Index> row;
      for (Index s = 0; s < shape.slots; ++s) row.push_back((7 * s + 3) % shape.slots);
      const Groups<B> groups{offsets, row, shape.slots};
      const auto a = uniform_tensor<T>(ctx, Seed{1}, scale, shape.slots, shape.rows),
                 dc = uniform_tensor<T>(ctx, Seed{2}, 1.0, shape.slots, shape.columns);
      Tensor<T, 3, B> added(3, shape.rows, shape.columns), stored(3, shape.rows, shape.columns);
      set_zero(ctx, added);
      fill(ctx, stored.view(), std::numeric_limits<T>::quiet_NaN());
      set_zero_later(ctx, stored);
      add_weight_gradient<B>(ctx, groups, a.view(), dc.view(), added);
      add_weight_gradient<B>(ctx, groups, a.view(), dc.view(), stored);
      CAPTURE(shape.rows);
      CAPTURE(shape.columns);
      CAPTURE(shape.slots);
      CHECK(std::memcmp(added.data(), stored.data(), std::size_t(added.size()) * sizeof(T)) == 0);
    }
}

}  // namespace

TEST_CASE("weight gradient: storing equals adding to zeros, with underflow") {
  for (const double scale : {1.0, 1e-38, 1e-42, 1e-44}) {
    check_underflow<float, Cpu>(scale);
    check_underflow<float, CpuBf16>(scale);
  }
  check_underflow<float, CpuBf16>(1e-37);
  for (const double scale : {1.0, 1e-308, 1e-322}) check_underflow<double, Cpu>(scale);
}

TEST_CASE("weight gradient: the first call stores, later calls add") {
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

TEST_CASE("weight gradient: adds to a gradient that is already written") {
  Noting::Context ctx(1);
  const std::vector<Index> offsets{0, 1}, row{0};
  const auto a = constant_tensor<double>(ctx, 2.0, 1, 1), dc = constant_tensor<double>(ctx, 3.0, 1, 1);
  auto grad = constant_tensor<double>(ctx, 1.0, 1, 1, 1);
  add_weight_gradient<Noting>(ctx, Groups<Noting>{offsets, row, 1}, a.view(), dc.view(), grad);
  CHECK(grad(0, 0, 0) == 7);
}

TEST_CASE("weight gradient: a skipped gradient is not computed") {
  Noting::Context ctx(1);
  const std::vector<Index> offsets{0, 1}, row{0};
  const auto a = constant_tensor<double>(ctx, 2.0, 1, 1), dc = constant_tensor<double>(ctx, 3.0, 1, 1);
  Tensor<double, 3, Noting> grad(1, 1, 1);
  grad.skip();
  set_zero_later(ctx, grad);
  Noting::added.clear();
  add_weight_gradient<Noting>(ctx, Groups<Noting>{offsets, row, 1}, a.view(), dc.view(), grad);
  CHECK(Noting::added.empty());
  CHECK(grad.size() == 0);
}
