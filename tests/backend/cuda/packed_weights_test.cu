// Weights in bfloat16: rounded to nearest even, found by the address of the original, and read by products.
#include "gatefold/backend/cuda/packed_weights.cuh"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "support/grouped_product.cuh"

using namespace gatefold;
using namespace gatefold::test;

namespace {

/// Returns the value of the upper half of a float. The first value past the finite ones counts as 2¹²⁸, as in IEEE 754
/// rounding.
double value_of(std::uint32_t half) {
  const double v = static_cast<double>(std::bit_cast<float>((half & 0x7fffu) << 16));
  return (half & 0x8000u ? -1 : 1) * (std::isinf(v) ? std::ldexp(1.0, 128) : v);
}

/// Returns the upper half of the float nearest to x, the even one of two equally near.
std::uint16_t nearest(float x) {
  const std::uint32_t below = std::bit_cast<std::uint32_t>(x) >> 16;  // towards 0
  if (std::isinf(x)) return static_cast<std::uint16_t>(below);
  const double down = std::abs(x - value_of(below)), up = std::abs(x - value_of(below + 1));
  return static_cast<std::uint16_t>(up < down || (up == down && below % 2 == 1) ? below + 1 : below);
}

float rounded(float x) { return std::bit_cast<float>(static_cast<std::uint32_t>(nearest(x)) << 16); }

std::vector<std::uint16_t> packed_bits(Cuda::Context& ctx, const std::vector<float>& x) {
  DeviceArray<float> w(ctx, x);
  detail_::device::PackedWeights packed;
  packed.add(ctx.stream(), w.data(), 1, static_cast<Index>(x.size()));
  std::vector<std::uint16_t> bits(x.size());
  Cuda::to_host(ctx, static_cast<Index>(x.size()),
                reinterpret_cast<const std::uint16_t*>(packed.find(w.data(), static_cast<Index>(x.size()))),
                bits.data());
  return bits;
}

}  // namespace

TEST_CASE("cuda: packed weights: round to nearest bfloat16, ties to even") {
  // Every exponent, with subnormal and the largest numbers, and the neighbours of half a unit of the last place.
  std::vector<float> x;
  for (std::uint32_t exponent = 0; exponent < 255; ++exponent)
    for (const std::uint32_t upper : {0x00u, 0x01u, 0x2au, 0x7eu, 0x7fu})
      for (const std::uint32_t lower : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu})
        for (const std::uint32_t sign : {0u, 1u})
          x.push_back(std::bit_cast<float>(sign << 31 | exponent << 23 | upper << 16 | lower));
  std::vector<std::uint16_t> expected;
  for (const float v : x) expected.push_back(nearest(v));
  Cuda::Context ctx;
  CHECK(difference(expected, packed_bits(ctx, x)) == "");
}

TEST_CASE("cuda: packed weights: known roundings, overflow and infinity") {
  Cuda::Context ctx;
  const float infinity = std::numeric_limits<float>::infinity(), largest = std::numeric_limits<float>::max();
  const std::vector<float> x{1,       1 + 0x1p-8f, 1 + 0x1.8p-7f, 1 + 0x1.1p-8f, -0.0f,
                             largest, -largest,    infinity,      -infinity,     0x1p-149f};
  const std::vector<std::uint16_t> expected{0x3f80, 0x3f80, 0x3f82, 0x3f81, 0x8000, 0x7f80, 0xff80, 0x7f80, 0xff80, 0};
  CHECK(difference(expected, packed_bits(ctx, x)) == "");
}

TEST_CASE("cuda: packed weights: NaN stays NaN for any payload bits") {
  Cuda::Context ctx;
  std::vector<float> x;
  for (const std::uint32_t bits : {0x7f800001u, 0x7fffffffu, 0xff800001u, 0xffffffffu, 0x7fc00000u, 0x7f80ffffu})
    x.push_back(std::bit_cast<float>(bits));
  for (const std::uint16_t bits : packed_bits(ctx, x)) CHECK((bits & 0x7fff) > 0x7f80);
}

TEST_CASE("cuda: packed weights: rows are padded with 0") {
  Cuda::Context ctx;
  const auto x = random_vector<float>(3 * 13, 1);
  DeviceArray<float> w(ctx, x);
  detail_::device::PackedWeights packed;
  packed.add(ctx.stream(), w.data(), 3, 13);
  std::vector<std::uint16_t> bits(3 * 16), expected;
  Cuda::to_host(ctx, 3 * 16, reinterpret_cast<const std::uint16_t*>(packed.find(w.data(), 13)), bits.data());
  for (int row = 0; row < 3; ++row)
    for (int j = 0; j < 16; ++j)
      expected.push_back(j < 13 ? nearest(x[static_cast<std::size_t>(row * 13 + j)]) : std::uint16_t(0));
  CHECK(difference(expected, bits) == "");
}

TEST_CASE("cuda: packed weights: found by the address of the original") {
  Cuda::Context ctx;
  DeviceArray<float> w(ctx, random_vector<float>(8, 1)), other(ctx, random_vector<float>(8, 2));
  DeviceArray<double> wide(ctx, random_vector<double>(8, 3));
  Cuda::PackedWeights packed;
  CHECK(packed.find(w.data(), 4) == nullptr);
  CHECK(packed.find(nullptr, 4) == nullptr);
  Cuda::pack(ctx, w.in(1, 2, 4), Weights::unchanged, packed);    // not to be rounded
  Cuda::pack(ctx, wide.in(1, 2, 4), Weights::bfloat16, packed);  // doubles are not packed
  Cuda::pack(ctx, other.in(0, 2, 4), Weights::bfloat16, packed);
  CHECK(packed.find(w.data(), 4) == nullptr);
  CHECK(packed.find(wide.data(), 4) == nullptr);
  CHECK(packed.find(other.data(), 4) == nullptr);
  Cuda::pack(ctx, w.in(1, 2, 4), Weights::bfloat16, packed);
  CHECK(packed.find(w.data(), 4) != nullptr);
  CHECK(packed.find(w.data() + 1, 4) == nullptr);
  CHECK(packed.find(other.data(), 4) == nullptr);
  CHECK(packed.find(w.data(), 8) == nullptr);  // another shape in the same place
  CHECK(packed.size() == 1);
}

TEST_CASE("cuda: packed weights: reuse memory of the same shape") {
  Cuda::Context ctx;
  auto x = random_vector<float>(8, 1);
  DeviceArray<float> w(ctx, x);
  detail_::device::PackedWeights packed;
  packed.add(ctx.stream(), w.data(), 1, 8);
  const Bfloat16* const first = packed.find(w.data(), 8);
  for (float& v : x) v = 3 * v + 1;
  Cuda::from_host(ctx, 8, x.data(), w.data());
  packed.round(ctx.stream(), w.data(), 1, 8);
  CHECK(packed.find(w.data(), 8) == first);
  std::vector<std::uint16_t> bits(8), expected;
  Cuda::to_host(ctx, 8, reinterpret_cast<const std::uint16_t*>(first), bits.data());
  for (const float v : x) expected.push_back(nearest(v));
  CHECK(difference(expected, bits) == "");
  packed.round(ctx.stream(), w.data(), 2, 4);
  CHECK(packed.find(w.data(), 8) == nullptr);
  CHECK(packed.find(w.data(), 4) != nullptr);
  CHECK(packed.size() == 1);
}

TEST_CASE("cuda: Context: reads packed weights while use() result lives") {
  Cuda::Context ctx;
  DeviceArray<float> w(ctx, random_vector<float>(8, 1));
  Cuda::PackedWeights packed, empty;
  Cuda::pack(ctx, w.in(1, 2, 4), Weights::bfloat16, packed);
  CHECK(ctx.packed(w.data(), 4) == nullptr);
  {
    const auto used = ctx.use(packed);
    CHECK(ctx.packed(w.data(), 4) == packed.find(w.data(), 4));
    {
      const auto inner = ctx.use(empty);
      CHECK(ctx.packed(w.data(), 4) == nullptr);
    }
    CHECK(ctx.packed(w.data(), 4) == packed.find(w.data(), 4));
  }
  CHECK(ctx.packed(w.data(), 4) == nullptr);
}

TEST_CASE("cuda: products with packed weights equal weights rounded by hand") {
  Cuda::Context ctx;
  const std::vector<Index> few{0, 3, 17, 0, 1}, many{0, 3, 0, 130, 97};
  for (const auto& counts : {few, many})
    for (const auto& [middle, last] : {std::pair(68, 20), std::pair(33, 9)}) {
      const ProductCase c{.counts = counts, .depth = 36, .columns = middle, .gather = true};
      CAPTURE(c);
      CHECK(difference_of_pair<float, 1>(ctx, c, last, 2, rounded) == "");
      CHECK(difference_of_pair<float, 2>(ctx, c, last, 3, rounded) == "");
    }
}

TEST_CASE("cuda: products with packed weights: wide strips and large tiles") {
  Cuda::Context ctx;
  const Index wide = 32 * ctx.multiprocessors() + 4;
  for (const Index rounds : {1, 2}) {
    const ProductCase large = many_tiles<float, 1>(ctx, rounds, 36);
    CAPTURE(large);
    CHECK(difference_of_pair<float, 1>(ctx, large, 12, 2, rounded) == "");
  }
  const ProductCase few{.counts = {1, 5, 16, 17}, .depth = 420, .columns = wide, .gather = true};
  CAPTURE(few);
  CHECK(difference_of_pair<float, 1>(ctx, few, 12, 2, rounded) == "");
  CHECK(difference_of_pair<float, 2>(ctx, few, 12, 3, rounded) == "");
}

TEST_CASE("cuda: products read plain weights if not all are packed") {
  Cuda::Context ctx;
  for (const Index count : {3, 130})
    for (const std::size_t packed : {0, 1, 2}) {
      const ProductCase c{.counts = {count, 0, count}, .depth = 12, .columns = 20};
      CAPTURE(c);
      CAPTURE(packed);
      CHECK(difference_of_pair<float, 2>(ctx, c, 8, packed, rounded) == "");
    }
}

TEST_CASE("cuda: transposed products of gradients read the plain weights") {
  Cuda::Context ctx;
  for (const Index count : {3, 130}) {
    const ProductCase c{.counts = {count, 0, count}, .depth = 12, .columns = 20, .transpose = true};
    CAPTURE(c);
    CHECK(difference_of_product<float>(ctx, c, 0, true) == "");
  }
}
