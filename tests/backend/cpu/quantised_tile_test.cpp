#include "gatefold/backend/cpu/quantised_tile.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "gatefold/backend/cpu/quantised_format.hpp"
#include "support/quantised.hpp"

using namespace gatefold;
using cpu::QuantisedFormat;
using cpu::QuantisedRow;

namespace {

constexpr Index width = cpu::Tile<float>::columns, group = cpu::group_size;

}  // namespace

TEST_CASE("quantised::multiply: equals plain loops for rows in any batch") {
  for (const Weights form : naive::quantised_forms) {
    const QuantisedFormat& format = *cpu::quantised_format<float>(form);
    const Index groups = 8, depth = groups * group, most = 40;
    const auto w = naive::random_vector<float>(depth * width, 5), x = naive::random_vector<float>(most * depth, 6);
    std::vector<std::byte> panel(static_cast<std::size_t>(groups * format.group_bytes));
    for (Index g = 0; g < groups; ++g)
      format.encode(w.data() + g * group * width, panel.data() + g * format.group_bytes);
    std::vector<QuantisedRow> rows(static_cast<std::size_t>(most));
    format.pack_rows({x.data(), depth}, 0, most, 0, depth, rows.data());
    const auto expected = [&](Index i, Index c) {
      return naive::quantised_dot(
          form, depth, [&](Index k) { return x[static_cast<std::size_t>(i * depth + k)]; },
          [&](Index k) { return w[static_cast<std::size_t>(k * width + c)]; });
    };
    std::vector<float> alone(static_cast<std::size_t>(most * width));
    for (Index i = 0; i < most; ++i)
      format.multiply(1, groups, 1, rows.data() + i, panel.data(), alone.data() + i * width, width, 0,
                      cpu::Into::store);
    int wrong = 0, differ = 0;
    for (Index i = 0; i < most; ++i)
      for (Index c = 0; c < width; ++c) {
        const naive::QuantisedSum sum = expected(i, c);
        wrong += !(std::abs(double(alone[static_cast<std::size_t>(i * width + c)]) - sum.value) <=
                   0x1p-24 * static_cast<double>(2 * groups + 2) * sum.magnitude);
      }
    for (Index count = 1; count <= most; ++count)
      for (const cpu::Into into : {cpu::Into::store, cpu::Into::add}) {
        const Index stride = width + 3;
        std::vector<float> sums(static_cast<std::size_t>(most * stride), 0.25F);
        format.multiply(count, groups, 1, rows.data(), panel.data(), sums.data(), stride, 0, into);
        for (Index i = 0; i < most; ++i)
          for (Index c = 0; c < stride; ++c) {
            const float before = into == cpu::Into::add ? 0.25F : 0.0F;
            const float sum = i < count && c < width ? before + alone[static_cast<std::size_t>(i * width + c)] : 0.25F;
            differ += sums[static_cast<std::size_t>(i * stride + c)] != sum;
          }
      }
    CAPTURE(static_cast<int>(form));
    CHECK(wrong == 0);
    CHECK(differ == 0);
  }
}
