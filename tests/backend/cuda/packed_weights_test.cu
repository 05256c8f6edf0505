// Weights in bfloat16, rounded to nearest even, and in 8 and 4 bits: found by the address of the original, and read by
// products.
#include "gatefold/backend/cuda/packed_weights.cuh"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
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

/// Rounds x to the nearest float whose lower half is 0, with ties to even. Returns the upper half of this float.
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

TEST_CASE("cuda: packed weights: round large and infinite values as expected") {
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

TEST_CASE("cuda: Context: reads packed weights until use() result ends") {
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

TEST_CASE("cuda: products with packed weights: strips and tiles equal loops") {
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
    CHECK(difference_of_product<float>(ctx, c, 0, Weights::bfloat16) == "");
  }
}

TEST_CASE("cuda: PackedWeights: finds quantised weights by address") {
  Cuda::Context ctx;
  DeviceArray<float> w(ctx, random_vector<float>(8, 1));
  Cuda::PackedWeights packed;
  CHECK(packed.find_quantised(w.data()) == nullptr);
  CHECK(packed.find_quantised(nullptr) == nullptr);
  Cuda::pack(ctx, w.in(0, 2, 4), Weights::int8, packed);  // no weights
  CHECK(packed.find_quantised(w.data()) == nullptr);
  Cuda::pack(ctx, w.in(1, 2, 4), Weights::bfloat16, packed);
  CHECK(packed.find_quantised(w.data()) == nullptr);
  for (const Weights form : naive::quantised_forms) {  // another form replaces a copy
    Cuda::pack(ctx, w.in(1, 2, 4), form, packed);
    REQUIRE(packed.find_quantised(w.data()) != nullptr);
    CHECK(packed.find_quantised(w.data())->rounding.form == form);
    CHECK(packed.find_quantised(w.data() + 1) == nullptr);
    CHECK(packed.find(w.data(), 4) == nullptr);
    CHECK(packed.size() == 0);
    CHECK(ctx.quantised(w.data()) == nullptr);
    const auto used = ctx.use(packed);
    CHECK(ctx.quantised(w.data()) == packed.find_quantised(w.data()));
    const Cuda::PackedWeights empty;
    const auto inner = ctx.use(empty);  // for example the rounded copies of a Trainer
    CHECK(ctx.quantised(w.data()) == packed.find_quantised(w.data()));
  }
  Cuda::pack(ctx, w.in(1, 2, 4), Weights::bfloat16, packed);
  CHECK(packed.find_quantised(w.data()) == nullptr);
  CHECK(packed.find(w.data(), 4) != nullptr);
}

TEST_CASE("cuda: PackedWeights: stores 32 weights in 34 or 18 bytes") {
  Cuda::Context ctx;
  DeviceArray<float> w(ctx, random_vector<float>(3 * 64 * 12, 1));
  for (const Weights form : naive::quantised_forms) {
    Cuda::PackedWeights packed;
    Cuda::pack(ctx, w.in(3, 64, 12), form, packed);
    CHECK(packed.quantised_bytes() == 3 * 2 * 12 * (form == Weights::int8 ? 34 : 18));
    Cuda::pack(ctx, w.in(3, 64, 12), form, packed);
    CHECK(packed.quantised_bytes() == 3 * 2 * 12 * (form == Weights::int8 ? 34 : 18));
  }
}

TEST_CASE("cuda: PackedWeights: reserved memory gets the bytes of pack") {
  Cuda::Context ctx;
  const Index experts = 5, depth = 37, columns = 6, matrix = depth * columns;
  const auto values = random_vector<float>(experts * matrix, 1);
  DeviceArray<float> w(ctx, values);
  for (const Weights form : naive::quantised_forms) {
    Cuda::PackedWeights packed;
    Cuda::pack(ctx, w.in(experts, depth, columns), form, packed);
    float* const address = Cuda::reserve_packed<float>(experts, depth, columns, form, packed);
    CHECK(!has_elements(address));
    // Two experts from device memory, and three from host memory.
    Cuda::pack_experts(ctx, address, 3, View<const float, 3, Cuda>(w.data() + 3 * matrix, 2, depth, columns), packed);
    Cuda::pack_experts(ctx, address, 0, View<const float, 3, Cuda>(values.data(), 3, depth, columns), packed);
    const auto bytes_of = [&](const float* at) {
      const auto& found = *packed.find_quantised(at);
      std::vector<std::uint8_t> bytes(found.bytes(experts));
      Cuda::to_host(ctx, static_cast<Index>(bytes.size()), found.numbers, bytes.data());
      std::fill(bytes.begin() + experts * found.number_rows() * found.stride,
                bytes.begin() + static_cast<std::ptrdiff_t>(found.scales_at(experts)), std::uint8_t(0));
      return bytes;
    };
    CHECK(bytes_of(address) == bytes_of(w.data()));
  }
}

TEST_CASE("cuda: PackedWeights: quantising doubles throws") {
  Cuda::Context ctx;
  DeviceArray<double> w(ctx, random_vector<double>(8, 1));
  Cuda::PackedWeights packed;
  const char* const of_doubles =
      "freeze: weights: expected Weights::unchanged for parameters of double, got a form of 8 or 4 bits";
  CHECK_THROWS_WITH_AS(Cuda::pack(ctx, w.in(1, 2, 4), Weights::int8, packed), of_doubles, ArgumentError);
  CHECK_THROWS_WITH_AS(Cuda::reserve_packed<double>(1, 2, 4, Weights::int8, packed), of_doubles, ArgumentError);
  CHECK(!Cuda::packs_only<double>(Weights::int8));
  CHECK(!Cuda::packs_only<float>(Weights::bfloat16));
}

TEST_CASE("cuda: products of quantised weights equal products of rounded weights") {
  Cuda::Context ctx;
  // Experts without items, with one item, with a full tile of rows and with a partial one. Some depths are no multiples
  // of 32, of 16, or of 2, and some columns no multiples of 4.
  const std::vector<Index> few{0, 1, 3, 0, 17, 1}, many{0, 3, 0, 70, 33, 32}, one{1}, none{0, 0};
  for (const Weights form : naive::quantised_forms) {
    CAPTURE(static_cast<int>(form));
    for (const auto& counts : {few, many, one, none})
      for (const auto& [depth, columns] :
           {std::pair<Index, Index>(36, 68), {64, 33}, {33, 64}, {1, 1}, {95, 130}, {130, 3}})
        for (const bool transpose : {false, true}) {
          if (counts == many && depth * columns > 3000) continue;
          const ProductCase c{
              .counts = counts, .depth = depth, .columns = columns, .transpose = transpose, .gather = depth != 64};
          CAPTURE(c);
          CHECK(difference_of_product<float>(ctx, c, 0, form) == "");
        }
  }
}

TEST_CASE("cuda: pairs of quantised weights equal pairs of rounded weights") {
  Cuda::Context ctx;
  for (const Weights form : naive::quantised_forms)
    for (const auto& counts : {std::vector<Index>{0, 3, 17, 0, 1}, std::vector<Index>{0, 40, 0, 33}}) {
      const ProductCase c{.counts = counts, .depth = 36, .columns = 33, .gather = true};
      CAPTURE(static_cast<int>(form));
      CAPTURE(c);
      CHECK(difference_of_pair<float, 1>(ctx, c, 20, 2, ToForm{form}) == "");
      CHECK(difference_of_pair<float, 1>(ctx, c, 20, 1, ToForm{form}) == "");  // the second matrix is plain
      CHECK(difference_of_pair<float, 2>(ctx, c, 9, 3, ToForm{form}) == "");
    }
}

TEST_CASE("cuda: quantising only one of two first matrices throws") {
  Cuda::Context ctx;
  const ProductCase c{.counts = {3}, .depth = 12, .columns = 20};
  CHECK_THROWS_WITH_AS(
      (difference_of_pair<float, 2>(ctx, c, 8, 1, ToForm{Weights::int8})),
      "freeze: weights: expected the first two matrices of an expert quantised, or none of them, got one of them",
      ArgumentError);
}

TEST_CASE("cuda: products throw without elements and packed copy") {
  Cuda::Context ctx;
  Cuda::PackedWeights packed;
  float* const address = Cuda::reserve_packed<float>(1, 4, 4, Weights::int8, packed);
  DeviceArray<float> a(ctx, random_vector<float>(4, 1)), c(ctx, random_vector<float>(4, 1));
  DeviceArray<Index> offsets(ctx, {0, 1});
  const char* const expected =
      ": weights: expected weights with elements, or the frozen parameters that have their packed copy, got parameters "
      "without elements; pass the FrozenParams to infer";
  CHECK_THROWS_WITH_AS(
      Cuda::grouped_gemm(ctx, Groups<Cuda>{offsets.in(2), {}, 1}, a.in(1, 4),
                         View<const float, 3, Cuda>(address, 1, 4, 4), false, c.as(1, 4), functor::Store{}),
      ("Cuda.grouped_gemm" + std::string(expected)).c_str(), ArgumentError);
  std::vector<float> values(16);
  CHECK_THROWS_WITH_AS(Cuda::to_host(ctx, 16, address, values.data()), ("Cuda.to_host" + std::string(expected)).c_str(),
                       ArgumentError);
}
