#include "gatefold/backend/carry_rows.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "gatefold/gatefold.hpp"

using namespace gatefold;

namespace {

/// Returns how many elements are wrong after CarryRows has moved every third row of 20, the last first, and moved them
/// back. The rows hold ties and numbers that overflow or are subnormal; widths lie around those of registers.
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
