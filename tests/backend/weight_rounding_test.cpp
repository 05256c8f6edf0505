#include "gatefold/backend/weight_rounding.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/backend/panels.hpp"
#include "support/naive.hpp"
#include "support/quantised.hpp"

using namespace gatefold;

namespace {

constexpr std::size_t size = WeightRounding::size;

struct Rounded {
  float scale = 0;
  std::vector<int> numbers;
};
Rounded rounded(Weights form, const std::vector<float>& group) {
  const WeightRounding rounding{form};
  float most = 0;
  for (const float w : group)
    if (WeightRounding::is_larger(w, most)) most = w;
  Rounded result{rounding.scale(most), {}};
  for (const float w : group) result.numbers.push_back(rounding.number(w, result.scale));
  return result;
}

/// Returns random groups of many magnitudes, groups with ties of a rounding, and groups with special numbers.
std::vector<std::vector<float>> groups() {
  std::vector<std::vector<float>> all;
  for (int i = 0; i < 300; ++i) {
    auto group = naive::random_vector<float>(Index(size), static_cast<std::uint64_t>(i + 1));
    for (float& w : group) w = std::ldexp(w, i < 200 ? i % 7 - 3 : i * 2 - 500);
    if (i % 5 == 0) group[std::size_t(i) % size] = -group[std::size_t(i * 7) % size];
    all.push_back(group);
  }
  std::vector<float> ties(size);
  for (std::size_t i = 0; i < size; ++i) ties[i] = static_cast<float>(i) * 0.25F - 4.0F;
  all.push_back(ties);
  for (float& w : ties) w *= 1.5F;
  all.push_back(ties);
  const float infinity = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  for (const float special :
       {infinity, -infinity, nan, 0x1p-100F, 0x1.fffffep-101F, 0x1p-127F, 0x1p-149F, 0x1.8p-120F, 0x1.9p127F, -0.0F}) {
    std::vector<float> group(size, 0.0F);
    group[5] = special;
    group[9] = special < 0 ? -special / 3 : -special / 2;
    all.push_back(group);
  }
  return all;
}

bool same(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

}  // namespace

TEST_CASE("WeightRounding: equations (1) to (3) equal the naive loops") {
  for (const Weights form : naive::quantised_forms)
    for (const auto& group : groups()) {
      const Rounded got = rounded(form, group);
      const naive::Group expected = naive::quantised(form, group);
      int wrong = 0;
      for (std::size_t i = 0; i < size; ++i)
        wrong += !same(double(WeightRounding{form}.value(got.numbers[i], got.scale)), expected.scale * expected.q[i]);
      CAPTURE(static_cast<int>(form));
      CAPTURE(group[0]);
      CAPTURE(group[5]);
      CHECK(same(double(got.scale), expected.scale));
      CHECK(wrong == 0);
    }
}

TEST_CASE("WeightRounding: numbers and scales equal the CPU format") {
  constexpr Index width = cpu::Tile<float>::columns;
  for (const Weights form : naive::quantised_forms) {
    const cpu::QuantisedFormat& format = *cpu::quantised_format<float>(form);
    for (const auto& group : groups()) {
      std::vector<float> panel(size * std::size_t(width));
      for (std::size_t i = 0; i < size; ++i) panel[i * std::size_t(width)] = group[i];
      std::vector<std::byte> packed(static_cast<std::size_t>(format.group_bytes));
      format.encode(panel.data(), packed.data());
      const QuantisedBytes bytes{form, 1, Index(size), width};
      std::vector<std::byte> numbers(static_cast<std::size_t>(bytes.numbers()));
      std::vector<Bfloat16> scales(static_cast<std::size_t>(width));
      Panels{form, false, 1, Index(size), width, width, 1, packed.data()}.to_numbers(numbers.data(), scales.data());
      const Rounded got = rounded(form, group);
      int wrong = !same(double(got.scale), double(float(scales[0])));
      for (Index i = 0; i < Index(size); ++i) {
        const auto byte = static_cast<std::uint32_t>(numbers[static_cast<std::size_t>(bytes.number_at(0, i, 0))]);
        wrong += got.numbers[static_cast<std::size_t>(i)] != WeightRounding{form}.stored(byte >> bytes.shift(i));
      }
      CAPTURE(static_cast<int>(form));
      CAPTURE(group[5]);
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("WeightRounding: scales are exact in bfloat16") {
  for (const Weights form : naive::quantised_forms)
    for (const auto& group : groups()) {
      const float scale = rounded(form, group).scale;
      CHECK(same(double(float(Bfloat16::from(scale))), double(scale)));
    }
}

TEST_CASE("WeightRounding: reads numbers from 8 or 4 bits") {
  for (int q = -127; q <= 127; ++q)
    CHECK(WeightRounding{Weights::int8}.stored(static_cast<std::uint32_t>(q & 255) | 0xab00U) == q);
  for (int q = -8; q <= 7; ++q)
    CHECK(WeightRounding{Weights::int4}.stored(static_cast<std::uint32_t>(q & 15) | 0xa0U) == q);
  const double sizes[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  for (int code = 0; code < 16; ++code) {
    const WeightRounding rounding{Weights::mxfp4};
    CHECK(rounding.stored(static_cast<std::uint32_t>(code) | 0x70U) == code);
    CHECK(double(rounding.value(code, 0.25F)) == (code < 8 ? 0.25 : -0.25) * sizes[code % 8]);
  }
}

TEST_CASE("WeightRounding: only forms of four bits share a byte") {
  CHECK(!WeightRounding{Weights::int8}.halves());
  CHECK(WeightRounding{Weights::int4}.halves());
  CHECK(WeightRounding{Weights::mxfp4}.halves());
}
