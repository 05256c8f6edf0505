#include "gatefold/backend/cpu/quantised_format.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/io/block_scales.hpp"
#include "support/quantised.hpp"

using namespace gatefold;
using cpu::QuantisedFormat;
using cpu::QuantisedRow;

namespace {

constexpr Index width = cpu::Tile<float>::columns, group = cpu::group_size;

float nan_or(float v) { return std::isnan(v) ? 99.0F : v; }

/// Returns groups [32, width] of many kinds: random values of all magnitudes, zeros, ties, infinities and NaN.
std::vector<float> weights(unsigned seed) {
  std::mt19937 random(seed);
  std::vector<float> w(static_cast<std::size_t>(group * width));
  for (Index c = 0; c < width; ++c) {
    const int exponent = static_cast<int>(random() % 40) - 20 - 100 * (c % 7 == 6),
              kind = static_cast<int>(random() % 12);
    for (Index k = 0; k < group; ++k) {
      const auto unit = static_cast<float>(random() % 4001) / 1000 - 2;
      float v = std::ldexp(unit, exponent);
      if (kind == 0) v = 0;
      if (kind == 1) v = std::ldexp(static_cast<float>(random() % 29) * 0.25F - 3.5F, exponent);  // ties
      if (kind == 2 && k == 5) v = std::numeric_limits<float>::infinity();
      if (kind == 3 && k == 31) v = -std::numeric_limits<float>::quiet_NaN();
      if (kind == 4) v = std::ldexp(unit, -140);
      if (kind == 5) v = std::numeric_limits<float>::max() * (k % 2 ? 0.25F : -0.2F);
      w[static_cast<std::size_t>(k * width + c)] = v;
    }
  }
  return w;
}
std::vector<float> column(const std::vector<float>& w, Index c) {
  return naive::group_of(0, group, [&](Index k) { return w[static_cast<std::size_t>(k * width + c)]; });
}
std::vector<float> decoded(const QuantisedFormat& format, const std::vector<float>& w) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(format.group_bytes) + 1, std::byte{0x5a});
  std::vector<float> values(w.size());
  format.encode(w.data(), bytes.data());
  CHECK(bytes.back() == std::byte{0x5a});
  format.decode(bytes.data(), values.data());
  return values;
}

}  // namespace

TEST_CASE("quantised_format: returns null except for 8 and 4 bits") {
  CHECK(cpu::quantised_format<float>(Weights::unchanged) == nullptr);
  CHECK(cpu::quantised_format<float>(Weights::bfloat16) == nullptr);
  CHECK(cpu::quantised_format<float>(Weights::int8)->group_bytes == 34 * width);
  CHECK(cpu::quantised_format<float>(Weights::int4)->group_bytes == 18 * width);
  CHECK(cpu::quantised_format<float>(Weights::mxfp4)->group_bytes == 18 * width);
}

TEST_CASE("quantised_format: rounds weights as plain loops do") {
  for (const Weights form : naive::quantised_forms) {
    const QuantisedFormat& format = *cpu::quantised_format<float>(form);
    int wrong = 0;
    for (unsigned seed = 1; seed <= 60; ++seed) {
      const std::vector<float> w = weights(seed), values = decoded(format, w);
      for (Index c = 0; c < width; ++c) {
        const naive::Group expected = naive::quantised(form, column(w, c));
        for (Index k = 0; k < group; ++k) {
          const auto value = static_cast<float>(expected.scale * expected.q[static_cast<std::size_t>(k)]);
          wrong += nan_or(values[static_cast<std::size_t>(k * width + c)]) != nan_or(value);
        }
      }
    }
    CAPTURE(static_cast<int>(form));
    CHECK(wrong == 0);
  }
}

TEST_CASE("quantised_format: errors stay within the stated bounds") {
  for (const Weights form : naive::quantised_forms) {
    int outside = 0;
    for (unsigned seed = 1; seed <= 60; ++seed) {
      const std::vector<float> w = weights(seed), values = decoded(*cpu::quantised_format<float>(form), w);
      for (Index c = 0; c < width; ++c) {
        const double scale = std::abs(naive::quantised(form, column(w, c)).scale);
        if (!(scale > 0)) continue;
        for (Index k = 0; k < group; ++k) {
          const double v = double(w[static_cast<std::size_t>(k * width + c)]);
          const double error = std::abs(v - double(values[static_cast<std::size_t>(k * width + c)])) / scale;
          const bool clipped = form == Weights::int4 && std::abs(v) / scale > 7.5;
          outside += error > (form == Weights::mxfp4 ? 1 : form == Weights::int8 || !clipped ? 0.5 : 1.04) * (1 + 1e-6);
        }
      }
    }
    CAPTURE(static_cast<int>(form));
    CHECK(outside == 0);
  }
}

TEST_CASE("quantised_format: weights of an MXFP4 file keep their values") {
  std::mt19937 random(3);
  const QuantisedFormat& format = *cpu::quantised_format<float>(Weights::mxfp4);
  int wrong = 0;
  for (int scale = 0; scale < 255; ++scale) {
    std::vector<float> w(static_cast<std::size_t>(group * width));
    for (Index c = 0; c < width; ++c) {
      std::byte bytes[16];
      for (std::byte& b : bytes) b = static_cast<std::byte>(random());
      const auto by = static_cast<std::byte>(scale);
      float values[32];
      io::block_scales::decode_mxfp4(bytes, &by, 1, values);
      for (Index k = 0; k < group; ++k) w[static_cast<std::size_t>(k * width + c)] = values[k];
    }
    // With the largest scales, some values exceed the range of float.
    bool finite = true;
    for (const float v : w) finite = finite && std::isfinite(v);
    if (!finite) continue;
    const std::vector<float> values = decoded(format, w);
    for (std::size_t i = 0; i < w.size(); ++i) wrong += values[i] != w[i];
  }
  CHECK(wrong == 0);
}

TEST_CASE("QuantisedRow: rounds items as plain loops do") {
  std::mt19937 random(4);
  int wrong = 0;
  for (const Index depth : {1, 31, 32, 33, 100, 255, 256})
    for (const float special :
         {0.0F, 1.0F, std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::quiet_NaN(), 1e-38F}) {
      std::vector<float> x = naive::random_vector<float>(2 * 300, static_cast<unsigned>(depth));
      for (std::size_t i = 0; i < x.size(); ++i) x[i] = std::ldexp(x[i], static_cast<int>(i / 32 % 60) - 30);
      x[300 + random() % static_cast<unsigned>(depth)] = special;
      const Index gathered[] = {1, 0};
      QuantisedRow rows[2];
      std::memset(rows, 0x77, sizeof(rows));
      cpu::quantised_format<float>(Weights::int8)->pack_rows({x.data(), 300, true, gathered}, 0, 2, 0, depth, rows);
      for (int r = 0; r < 2; ++r)
        for (Index g = 0; g < QuantisedRow::groups; ++g) {
          const auto from = naive::group_of(
              32 * g, depth, [&](Index i) { return x[static_cast<std::size_t>(gathered[r] * 300 + i)]; });
          const naive::Group expected = naive::rounded_items(from);
          wrong += nan_or(rows[r].scale[g]) != nan_or(static_cast<float>(expected.scale));
          double sum = 0;
          for (std::size_t i = 0; i < 32; ++i) {
            const double q = i < expected.q.size() ? expected.q[i] : 0;
            sum += q;
            wrong += rows[r].values[static_cast<std::size_t>(32 * g) + i] != q;
          }
          wrong += rows[r].sum[g] != sum;
        }
    }
  CHECK(wrong == 0);
}
