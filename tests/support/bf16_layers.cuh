#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "gatefold/gatefold.cuh"
#include "support/larger.hpp"
#include "support/members.hpp"
#include "support/naive_bf16.hpp"

/// Compares a layer on CudaBf16 with plain loops that round the same factors.
namespace gatefold::test {

struct Part {
  std::string name;
  std::vector<float> values;
};

/// Returns the results of a layer and all gradients.
template <class B, class L>
std::vector<Part> outcome(typename B::Context& ctx, const L& layer, Index items, Index dim) {
  const auto params = init_params<float, B>(layer, ctx, Seed{1});
  auto grads = zeros_like(ctx, params);
  const auto x = uniform_tensor<float>(ctx, Seed{2}, 1, items, dim),
             dy = uniform_tensor<float>(ctx, Seed{3}, 1, items, dim);
  Tensor<float, 2, B> y(items, dim), inferred(items, dim), dx(items, dim);
  Saved<L, float, B> saved;
  Carry<L, float, B> carry, dcarry;
  layer.begin(ctx, params, items, carry);
  layer.forward(ctx, params, x, carry, y, saved);
  layer.begin(ctx, params, items, dcarry);
  set_zero(ctx, dx);
  gatefold::backward(layer, ctx, params, x, saved, dy, dcarry, dx, grads);
  layer.begin(ctx, params, items, carry);
  gatefold::infer<float, B>(layer, ctx, params, x, carry, inferred);
  std::vector<Part> parts;
  const auto add = [&](const std::string& name, const auto& t) {
    parts.push_back({name, std::vector<float>(static_cast<std::size_t>(t.size()))});
    B::to_host(ctx, t.size(), t.data(), parts.back().values.data());
  };
  add("y", y);
  add("inferred", inferred);
  add("dx", dx);
  for_each_tensor([&](const Name& part, const auto& t) { add("grads." + part.str(), t); }, grads);
  return parts;
}

/// Compares two results. Sums in another order differ by about 2^-22. If such a sum lies near the border between two
/// bfloat16 values, it may be rounded to the other one. So a few values differ by 2^-8 of a factor.
/// @param share  the largest share of values that may differ by more than sums in float do
inline void expect_alike(const std::vector<Part>& got, const std::vector<Part>& expected, double share) {
  REQUIRE(got.size() == expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    CAPTURE(got[i].name);
    REQUIRE(got[i].values.size() == expected[i].values.size());
    float largest = 0, most = 0;
    for (const float v : expected[i].values) largest = support::larger(largest, std::abs(v));
    std::size_t many = 0;
    for (std::size_t j = 0; j < got[i].values.size(); ++j) {
      const float distance = std::abs(got[i].values[j] - expected[i].values[j]);
      many += !(distance <= 0x1p-17f * largest);  // also counts NaN
      most = std::max(most, std::isnan(distance) ? INFINITY : distance);
    }
    CHECK(static_cast<double>(many) <= share * static_cast<double>(got[i].values.size()) + 1);
    CHECK(most <= 0x1p-7f * largest);
  }
}

/// Compares the layer on the device with loops. A second run on the device must give the same bits.
template <class L>
void check_bf16_layer(const L& layer, Index items, Index dim, double share = 0.02) {
  CudaBf16::Context ctx;
  NaiveBf16::Context naive;
  const auto got = outcome<CudaBf16>(ctx, layer, items, dim);
  expect_alike(got, outcome<NaiveBf16>(naive, layer, items, dim), share);
  const auto again = outcome<CudaBf16>(ctx, layer, items, dim);
  for (std::size_t i = 0; i < got.size(); ++i) CHECK(got[i].values == again[i].values);
}

}  // namespace gatefold::test
