// Every expert of tests/descriptors on CpuBf16: the same bits on any threads and in any batch, and the values of plain
// loops that round the same factors.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <type_traits>
#include <vector>

#include "bitwise/bitwise.hpp"
#include "descriptors/expert.hpp"
#include "support/naive_bf16.hpp"

using namespace gatefold;
using namespace gatefold::bitwise;
using test::NaiveBf16;

namespace {

/// Shares of a tensor's values that are apart by more than an error of sums in float, and the largest distance, both
/// measured by the largest value.
struct Apart {
  double share = 0, most = 0;
};
Apart apart(const Part& a, const Part& b) {
  double largest = 0, most = 0;
  for (const double v : a.values) largest = std::max(largest, std::abs(v));
  std::size_t many = 0;
  for (std::size_t i = 0; i < a.values.size(); ++i) {
    const double distance = std::abs(a.values[i] - b.values[i]);
    many += !(distance <= 0x1p-17 * largest);  // NaN counts
    most = std::max(most, distance);
  }
  return {static_cast<double>(many) / static_cast<double>(std::max<std::size_t>(a.values.size(), 1)),
          largest > 0 ? most / largest : most};
}

/// Sums in another order are off by some 2^-22, and where such a sum lies close to the border between two bfloat16 it
/// is rounded to the other one: few values, by 2^-8 of a factor.
void compare(const std::vector<Part>& got, const std::vector<Part>& expected) {
  REQUIRE(got.size() == expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    CAPTURE(got[i].name);
    REQUIRE(got[i].values.size() == expected[i].values.size());
    const Apart off = apart(expected[i], got[i]);
    CHECK(off.share <= 0.02);
    CHECK(off.most <= 0x1p-7);
  }
}

template <class E, class L>
void check(const E&, const L& layer) {
  on_any_threads<float, CpuBf16>(layer, few, true, {.noise = true});
  on_any_threads<float, CpuBf16>(layer, 300, true);
  in_any_batch<float, CpuBf16>(layer, {}, 1, {0, 5, 29}, 200);

  // The router's gradients of norms are what is left of sums that cancel: all experts begin alike.
  if constexpr (!std::is_same_v<E, LayerNorm> && !std::is_same_v<E, RmsNorm>) {
    const Index items = 60;
    CpuBf16::Context ctx(2);
    NaiveBf16::Context naive;
    const Outcome got = Subject<float, L, CpuBf16>(layer, items).trained(ctx, 0, items),
                  expected = Subject<float, L, NaiveBf16>(layer, items).trained(naive, 0, items);
    compare(got.of_items, expected.of_items);
    compare(got.of_all, expected.of_all);
  }
}

template <class Row>
void check_row(const Row&) {
  const auto expert = Row::make(rows::odd);
  const Mixture mixture{top_2, expert};
  if constexpr (std::is_same_v<Row, rows::RowOf_merged_transformer>)
    check(expert, NoResidual{mixture});  // gives one number
  else
    check(expert, Residual{update::HeavyBall{}, mixture});
}
template <class... Row>
void check_all(const Row&... rows) {
  (check_row(rows), ...);
}

}  // namespace

TEST_CASE("experts of matrices: any threads, any batch, and the values of loops") {
  check_all(rows::linear, rows::mlp, rows::gated_mlp, rows::mlp_of_relu, rows::mlp_of_gelu_tanh, rows::mlp_of_cubic);
}
TEST_CASE("experts made of others") {
  check_all(rows::hidden_dropout, rows::hidden_dropout_gated, rows::experts, rows::sigmoid_gated, rows::layer_norm,
            rows::rms_norm);
}
TEST_CASE("experts of patches and sequences") {
  check_all(rows::patch_mlp, rows::patch_cnn, rows::attention_expert, rows::multi_head_expert, rows::transformer_expert,
            rows::merged_transformer);
}
