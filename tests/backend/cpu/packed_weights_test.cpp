#include "gatefold/backend/cpu/packed_weights.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "support/naive.hpp"
#include "support/quantised.hpp"
#include "support/words.hpp"

using namespace gatefold;
using cpu::PackedMatrix;
using cpu::PackedWeights;

namespace {

Weights form(bool round) { return round ? Weights::bfloat16 : Weights::unchanged; }

}  // namespace

TEST_CASE_TEMPLATE("PackedWeights: stores every weight at its place in the panel", P, float, double, Bfloat16) {
  using T = cpu::SumOf<P>;
  constexpr bool rounds = std::is_same_v<P, Bfloat16>;
  constexpr Index width = cpu::Tile<P>::columns, block = cpu::Tile<P>::depth;
  for (const auto& [experts, depth, columns] : {std::array<Index, 3>{3, 5, 7}, {2, 600, 70}, {1, 256, 64}}) {
    const auto w = naive::random_vector<T>(experts * depth * columns, 3);
    for (const bool round : {false, true})
      for (const int threads : {1, 3}) {
        PackedWeights weights;
        Cpu::Context ctx(threads);
        weights.add<P>(ctx, w.data(), experts, depth, columns, form(round));
        const PackedMatrix<P> first = weights.find<P>(w.data());
        REQUIRE(first);
        CHECK(bool(first.half) == ((round || rounds) && std::is_same_v<T, float> && cpu::values_of_word<P> == 1));
        CHECK(bool(first.half_tile) == (first.half && !cpu::on_amx<P>));
        CHECK(!weights.find<std::conditional_t<rounds, float, Bfloat16>>(reinterpret_cast<const float*>(w.data())));
        CHECK(!weights.find<P>(w.data() + 1));
        std::vector<T> buffer(static_cast<std::size_t>(block * width));
        for (Index e = 0; e < experts; ++e)
          for (Index k0 = 0; k0 < depth; k0 += block)
            for (Index j0 = 0; j0 < columns; j0 += width) {
              const PackedMatrix<P> matrix = first + e * PackedMatrix<P>::size(depth, columns);
              const Index length = std::min(block, depth - k0);
              const T* panel =
                  matrix.panel(PackedMatrix<P>::at(columns, k0, length, j0), cpu::words<P>(length), buffer.data());
              bool equal = true;
              for (Index k = 0; k < length; ++k)
                for (Index j = 0; j < width; ++j) {
                  T expected =
                      j0 + j < columns ? w[static_cast<std::size_t>((e * depth + k0 + k) * columns + j0 + j)] : T(0);
                  if (first.half || rounds) expected = T(float(Bfloat16::from(float(expected))));
                  const T word = panel[k / cpu::values_of_word<P> * width + j];
                  equal = equal && support::value_of_word<P>(word, k) == expected;
                }
              CHECK(equal);
              if (k0 == 0 || j0 == 0) continue;
              // Outside the first block and the first panel, value() must find the weight (k0 + 1, j0).
              const T weight = w[static_cast<std::size_t>((e * depth + k0 + 1) * columns + j0)];
              CHECK(matrix.value(k0 + 1, j0, depth, columns) ==
                    (first.half || rounds ? T(float(Bfloat16::from(float(weight)))) : weight));
            }
      }
  }
}

TEST_CASE_TEMPLATE("PackedWeights: packing into reserved memory gives the bits of add", P, float, double, Bfloat16) {
  using T = cpu::SumOf<P>;
  const Index experts = 5, depth = 300, columns = 70, matrix = depth * columns;
  const auto w = naive::random_vector<T>(experts * matrix, 3);
  Cpu::Context ctx(2);
  for (const bool round : {false, true}) {
    PackedWeights plain, reserved;
    plain.add<P>(ctx, w.data(), experts, depth, columns, form(round));
    T* const address = reserved.reserve<P>(experts, depth, columns, form(round));
    T* const other = reserved.reserve<P>(1, depth, columns, form(round));
    CHECK(address != other);
    reserved.pack<P>(ctx, address, 2, 3, w.data() + 2 * matrix, depth, columns);
    reserved.pack<P>(ctx, address, 0, 2, w.data(), depth, columns);
    reserved.pack<P>(ctx, other, 0, 1, w.data(), depth, columns);
    const PackedWeights moved = std::move(reserved);
    const PackedMatrix<P> a = plain.find<P>(w.data()), b = moved.find<P>(address);
    REQUIRE(bool(b));
    REQUIRE(bool(a.half) == bool(b.half));
    const auto words = static_cast<std::size_t>(experts * PackedMatrix<P>::size(depth, columns));
    if (a.half)
      CHECK(std::memcmp(a.half, b.half, words * sizeof(Bfloat16)) == 0);
    else
      CHECK(std::memcmp(a.full, b.full, words * sizeof(T)) == 0);
    CHECK_NOTHROW(expect_elements("here", w.data()));
    CHECK_THROWS_AS(expect_elements("here", address), ArgumentError);
  }
}

TEST_CASE("PackedWeights: add_transposed and pack_columns give the bits of add") {
  constexpr Index width = cpu::Tile<float>::columns;
  const Index depth = 300, columns = 2 * width + 7;
  const auto w = naive::random_vector<float>(columns * depth, 3);
  std::vector<float> transposed(w.size());
  for (Index j = 0; j < columns; ++j)
    for (Index k = 0; k < depth; ++k)
      transposed[static_cast<std::size_t>(k * columns + j)] = w[static_cast<std::size_t>(j * depth + k)];
  Cpu::Context ctx(2);
  for (const Weights form : {Weights::unchanged, Weights::bfloat16, Weights::int8, Weights::int4, Weights::mxfp4}) {
    PackedWeights packed;
    packed.add<float>(ctx, transposed.data(), 1, depth, columns, form);
    packed.add_transposed<float>(ctx, w.data(), depth, columns, form);
    float* const address = packed.reserve<float>(1, depth, columns, form);
    packed.pack_columns<float>(ctx, address, width, width + 7, w.data() + width * depth, depth, columns);
    packed.pack_columns<float>(ctx, address, 0, width, w.data(), depth, columns);
    // If the weights also have elements, reserve returns the address of the elements.
    std::vector<float> elements = w;
    CHECK(packed.reserve<float>(1, depth, columns, form, elements.data()) == elements.data());
    packed.pack_columns<float>(ctx, elements.data(), 0, columns, w.data(), depth, columns);
    const auto bytes = [&](const float* at) {
      const PackedMatrix<float> found = packed.find<float>(at);
      const auto words = static_cast<std::size_t>(PackedMatrix<float>::size(depth, columns));
      const auto text = [](const void* data, std::size_t size) {
        return std::string(static_cast<const char*>(data), size);
      };
      if (found.full) return text(found.full, words * sizeof(float));
      if (found.half) return text(found.half, words * sizeof(Bfloat16));
      const auto groups = static_cast<std::size_t>(cpu::QuantisedMatrix::size(depth, columns));
      return text(found.quantised.data, groups * static_cast<std::size_t>(found.quantised.format->group_bytes));
    };
    const std::string expected = bytes(transposed.data());
    CAPTURE(int(form));
    CHECK((bytes(w.data()) == expected));
    CHECK((bytes(address) == expected));
    CHECK((bytes(elements.data()) == expected));
  }
}

TEST_CASE("PackedWeights: packing again replaces the older copy") {
  const Index n = 8;
  auto w = naive::random_vector<float>(4 * n * n, 4);
  Cpu::Context ctx(1);
  PackedWeights a;
  std::vector<float> buffer(static_cast<std::size_t>(cpu::Tile<float>::depth * cpu::Tile<float>::columns));
  for (const auto& [experts, round] :
       {std::pair(Index(2), false), {Index(2), false}, {Index(4), false}, {Index(4), true}}) {
    for (float& v : w) v = static_cast<float>(Bfloat16::from(2 * v + 1));
    a.add<float>(ctx, w.data(), experts, n, n, form(round));
    const PackedMatrix<float> found = a.find<float>(w.data());
    CHECK(bool(found.half) == round);
    const PackedMatrix<float> last = found + (experts - 1) * PackedMatrix<float>::size(n, n);
    const float* panel = last.panel(0, n, buffer.data());
    CHECK(panel[3] == w[static_cast<std::size_t>((experts - 1) * n * n + 3)]);
  }
}

TEST_CASE("PackedWeights: can be moved, holds no empty tensors") {
  const auto w = naive::random_vector<float>(64, 4);
  Cpu::Context ctx(1);
  PackedWeights a;
  a.add<float>(ctx, w.data(), 1, 8, 8, Weights::unchanged);
  a.add<float>(ctx, nullptr, 4, 0, 8, Weights::unchanged);
  CHECK(!a.find<float>(nullptr));
  PackedWeights b = std::move(a);
  CHECK(b.find<float>(w.data()));
  PackedWeights c;
  c = std::move(b);
  CHECK(c.find<float>(w.data()));
}

TEST_CASE("PackedWeights: expect_readable accepts panels of the same width") {
  const auto w = naive::random_vector<float>(64, 4);
  Cpu::Context ctx(1);
  PackedWeights a;
  a.expect_readable();
  a.add<float>(ctx, w.data(), 1, 8, 8, Weights::unchanged);
  PackedWeights b = std::move(a), c;
  c = std::move(b);
  c.expect_readable();  // tests/march hands weights from one instruction set to another
}

TEST_CASE_TEMPLATE("PackedWeights: quantises each group of each expert", P, float, Bfloat16) {
  constexpr Index width = cpu::Tile<P>::columns, block = cpu::Tile<P>::depth;
  Cpu::Context ctx(2);
  for (const Weights form : naive::quantised_forms)
    for (const auto& shape : {std::array<Index, 3>{3, 5, 7}, {2, 600, 70}, {1, 256, 64}}) {
      const Index experts = shape[0], depth = shape[1], columns = shape[2];
      const Index matrix = depth * columns;
      const auto w = naive::random_vector<float>(experts * matrix, 3);
      PackedWeights weights, reserved;
      weights.add<P>(ctx, w.data(), experts, depth, columns, form);
      float* const address = reserved.reserve<P>(experts, depth, columns, form);
      reserved.pack<P>(ctx, address, experts - 1, 1, w.data() + (experts - 1) * matrix, depth, columns);
      reserved.pack<P>(ctx, address, 0, experts - 1, w.data(), depth, columns);
      const PackedMatrix<P> first = weights.find<P>(w.data()), other = reserved.find<P>(address);
      REQUIRE(first.quantised);
      REQUIRE(!first.full);
      REQUIRE(!first.half);
      const cpu::QuantisedFormat& format = *first.quantised.format;
      REQUIRE(other.quantised.format == &format);
      const Index bytes = experts * cpu::QuantisedMatrix::size(depth, columns) * format.group_bytes;
      CHECK(std::memcmp(first.quantised.data, other.quantised.data, static_cast<std::size_t>(bytes)) == 0);
      std::vector<float> values(static_cast<std::size_t>(32 * width));
      int wrong = 0;
      for (Index e = 0; e < experts; ++e)
        for (Index k = 0; k < depth; k += 32)
          for (Index j = 0; j < columns; j += width) {
            const Index k0 = k / block * block;
            const PackedMatrix<P> panel =
                first.expert(e, depth, columns).block(columns, k0, std::min(block, depth - k0), j);
            format.decode(panel.quantised.data + (k - k0) / 32 * format.group_bytes, values.data());
            for (Index c = 0; c < width; ++c) {
              const auto group = naive::group_of(k, depth, [&](Index i) {
                return j + c < columns ? w[static_cast<std::size_t>(e * matrix + i * columns + j + c)] : 0.0F;
              });
              const naive::Group expected = naive::quantised(form, group);
              for (std::size_t i = 0; i < 32; ++i)
                wrong += double(values[i * std::size_t(width) + std::size_t(c)]) !=
                         (i < group.size() ? expected.scale * expected.q[i] : 0);
            }
          }
      CHECK(wrong == 0);
    }
}

TEST_CASE("PackedWeights: double weights cannot be quantised") {
  const std::vector<double> w(64);
  Cpu::Context ctx(1);
  PackedWeights weights;
  CHECK_THROWS_WITH_AS(weights.add<double>(ctx, w.data(), 1, 8, 8, Weights::int8),
                       "freeze: weights: expected Weights::unchanged for parameters of double, got a form of 8 or 4 "
                       "bits",
                       ArgumentError);
  CHECK(!weights.find<double>(w.data()));
}
