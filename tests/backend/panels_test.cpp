#include "gatefold/backend/panels.hpp"

#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <type_traits>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/io/block_scales.hpp"
#include "support/quantised.hpp"

using namespace gatefold;

TEST_CASE("Panels: numbers times scales are the rounded weights") {
  Cpu::Context ctx(2);
  for (const Weights form : naive::quantised_forms)
    for (const auto& shape : {std::array<Index, 3>{3, 5, 7}, {2, 299, 70}, {1, 256, 64}}) {
      const Index experts = shape[0], depth = shape[1], columns = shape[2];
      const auto w = naive::random_vector<float>(experts * depth * columns, 3);
      cpu::PackedWeights weights;
      weights.add<float>(ctx, w.data(), experts, depth, columns, form);
      const Panels panels = weights.panels(w.data(), experts, depth, columns);
      const QuantisedBytes bytes{form, experts, depth, columns};
      std::vector<std::byte> numbers(static_cast<std::size_t>(bytes.numbers()));
      std::vector<Bfloat16> scales(static_cast<std::size_t>(bytes.scales()));
      panels.to_numbers(numbers.data(), scales.data());
      CHECK(bytes.wrong_number(numbers.data()) == -1);
      CHECK(bytes.wrong_scale(scales.data()) == -1);
      int wrong = 0;
      for (Index e = 0; e < experts; ++e)
        for (Index j = 0; j < columns; ++j)
          for (Index k = 0; k < depth; ++k) {
            const auto group = naive::group_of(k / 32 * 32, depth, [&](Index i) {
              return w[static_cast<std::size_t>((e * depth + i) * columns + j)];
            });
            const naive::Group expected = naive::quantised(form, group);
            const Index rows = form == Weights::int8 ? depth : (depth + 1) / 2, row = form == Weights::int8 ? k : k / 2;
            const auto byte =
                std::to_integer<std::uint8_t>(numbers[static_cast<std::size_t>((e * rows + row) * columns + j)]);
            const auto half = static_cast<std::uint8_t>(k % 2 ? byte >> 4 : byte & 15);
            const double q = form == Weights::int8   ? double(static_cast<std::int8_t>(byte))
                             : form == Weights::int4 ? half - (half >= 8 ? 16 : 0)
                                                     : double(io::block_scales::e2m1(half));
            const auto scale =
                static_cast<float>(scales[static_cast<std::size_t>((e * ((depth + 31) / 32) + k / 32) * columns + j)]);
            const double expected_q = expected.q[static_cast<std::size_t>(k % 32)];
            wrong += q != expected_q || double(scale) != expected.scale ||
                     double(bytes.value(numbers.data(), scales.data(), e, k, j)) != expected_q * expected.scale;
          }
      CHECK(wrong == 0);

      // Packing the numbers and scales again gives the same bytes, and panels of any width give the same numbers and
      // scales.
      const cpu::QuantisedMatrix matrix = weights.find<float>(w.data()).quantised;
      CHECK(panels.data == matrix.data);
      CHECK(panels.bytes() == experts * cpu::QuantisedMatrix::size(depth, columns) * matrix.format->group_bytes);
      for (const Index width : {panels.width, Index(2), Index(8), Index(16), Index(32), Index(64)}) {
        Panels other = panels;
        other.width = width;
        std::vector<std::byte> packed(static_cast<std::size_t>(other.bytes()), std::byte{0xff}), again(numbers.size());
        std::vector<Bfloat16> scales_again(scales.size());
        other.from_numbers(numbers.data(), scales.data(), packed.data());
        if (width == panels.width) CHECK(std::memcmp(packed.data(), matrix.data, packed.size()) == 0);
        other.data = packed.data();
        CHECK(other.same_order(panels) == (width == panels.width));
        other.to_numbers(again.data(), scales_again.data());
        CHECK(again == numbers);
        CHECK(std::memcmp(scales_again.data(), scales.data(), scales.size() * sizeof(Bfloat16)) == 0);
      }
    }
}

TEST_CASE_TEMPLATE("Panels: weights that are not quantised become floats", P, float, Bfloat16) {
  Cpu::Context ctx(2);
  for (const Weights form : {Weights::unchanged, Weights::bfloat16})
    for (const auto& shape : {std::array<Index, 3>{3, 5, 7}, {2, 299, 70}, {1, 256, 64}}) {
      const Index experts = shape[0], depth = shape[1], columns = shape[2];
      const auto w = naive::random_vector<float>(experts * depth * columns, 3);
      cpu::PackedWeights weights;
      weights.add<P>(ctx, w.data(), experts, depth, columns, form);
      const Panels panels = weights.panels(w.data(), experts, depth, columns);
      CHECK(panels.pairs == (cpu::values_of_word<P> == 2));
      CHECK(panels.shape().size() == (panels.pairs ? 4 : 3));
      std::vector<float> values(w.size());
      panels.to_floats(values.data(), false);
      const bool rounds = panels.form == Weights::bfloat16;
      CHECK(rounds == (form == Weights::bfloat16 || std::is_same_v<P, Bfloat16>));
      int wrong = 0;
      for (std::size_t i = 0; i < w.size(); ++i) wrong += values[i] != (rounds ? float(Bfloat16::from(w[i])) : w[i]);
      CHECK(wrong == 0);
      if (experts > 1) continue;
      std::vector<float> transposed(w.size());
      panels.to_floats(transposed.data(), true);
      for (Index k = 0; k < depth; ++k)
        for (Index j = 0; j < columns; ++j)
          wrong +=
              transposed[static_cast<std::size_t>(j * depth + k)] != values[static_cast<std::size_t>(k * columns + j)];
      CHECK(wrong == 0);
    }
}

TEST_CASE("Panels: weights without a packed copy have no panels") {
  const float w = 0;
  CHECK(!cpu::PackedWeights().panels(&w, 1, 1, 1));
}
