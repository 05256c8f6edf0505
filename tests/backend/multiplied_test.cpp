#include "gatefold/backend/multiplied.hpp"

#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <type_traits>
#include <utility>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/backend/random_fill.hpp"
#include "gatefold/core/bfloat16.hpp"
#include "gatefold/tensor/tensor.hpp"

using namespace gatefold;

namespace {

/// A backend that names Multiplied and has nothing else but what experts need with it.
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
