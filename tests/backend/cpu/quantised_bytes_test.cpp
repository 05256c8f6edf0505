#include "gatefold/backend/cpu/quantised_bytes.hpp"

#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/io/block_scales.hpp"
#include "support/quantised.hpp"

using namespace gatefold;

TEST_CASE("write_quantised: numbers times scales are the rounded weights") {
  Cpu::Context ctx(2);
  for (const Weights form : naive::quantised_forms)
    for (const auto& shape : {std::array<Index, 3>{3, 5, 7}, {2, 299, 70}, {1, 256, 64}}) {
      const Index experts = shape[0], depth = shape[1], columns = shape[2];
      const auto w = naive::random_vector<float>(experts * depth * columns, 3);
      cpu::PackedWeights weights;
      weights.add<float>(ctx, w.data(), experts, depth, columns, form);
      const cpu::QuantisedMatrix matrix = weights.find<float>(w.data()).quantised;
      const QuantisedBytes bytes{form, experts, depth, columns};
      std::vector<std::byte> numbers(static_cast<std::size_t>(bytes.numbers()));
      std::vector<Bfloat16> scales(static_cast<std::size_t>(bytes.scales()));
      cpu::write_quantised(bytes, matrix, numbers.data(), scales.data());
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

      const auto size =
          static_cast<std::size_t>(experts * cpu::QuantisedMatrix::size(depth, columns) * matrix.format->group_bytes);
      std::vector<std::byte> again(size);
      cpu::read_quantised(bytes, numbers.data(), scales.data(), again.data());
      CHECK(std::memcmp(again.data(), matrix.data, size) == 0);
    }
}
