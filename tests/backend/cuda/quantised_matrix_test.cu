// Weights of 8 and 4 bits on the device: numbers, scales, padding and the values that kernels read, compared with plain
// loops.
#include "gatefold/backend/cuda/quantised_matrix.cuh"

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "support/device_array.cuh"
#include "support/quantised.hpp"

using namespace gatefold;
using namespace gatefold::detail_::device;

namespace {

/// Reads all values of a matrix, four at a time: to[e, row, column].
struct ReadAll {
  QuantisedMatrix matrix;
  float* to;
  GATEFOLD_HD void operator()(Index i) const {
#ifdef __CUDA_ARCH__
    const Index fours = matrix.stride / 4, e = i / fours / matrix.depth;
    QuantisedMatrix of_expert = matrix;
    of_expert.to_expert(e);
    const QuantisedFour four = of_expert.four(i / fours % matrix.depth, i % fours * 4);
    for (int j = 0; j < 4; ++j) to[4 * i + j] = four.value(matrix.rounding, j);
#endif
  }
};

struct Quantised {
  Index experts, depth, columns;
  std::vector<float> values;        // [experts, depth, columns]
  std::vector<std::uint8_t> bytes;  // all bytes on the device
  std::vector<float> decoded;       // [experts, depth, stride]
  QuantisedMatrix matrix;

  Quantised(Cuda::Context& ctx, Weights form, Index e, Index d, Index c, std::vector<float> v)
      : experts(e), depth(d), columns(c), values(std::move(v)), matrix{{form}, d, divide_up(c, Index(4)) * 4} {
    test::DeviceArray<float> from(ctx, values);
    bytes.assign(matrix.bytes(e), 0x5a);
    test::DeviceArray<std::uint8_t> memory(ctx, bytes);
    matrix.numbers = memory.data();
    matrix.scales = reinterpret_cast<Bfloat16*>(memory.data() + matrix.scales_at(e));
    quantise(ctx.stream(), e, c, from.data(), matrix);
    decoded.assign(static_cast<std::size_t>(e * d * matrix.stride), -77);
    test::DeviceArray<float> to(ctx, decoded);
    Cuda::for_each(ctx, e * d * matrix.stride / 4, ReadAll{matrix, to.data()});
    decoded = to.values();
    bytes = memory.values();
  }

  naive::Group group(Index e, Index first, Index column) const {
    return naive::quantised(matrix.rounding.form, naive::group_of(first, depth, [&](Index row) {
                              return values[static_cast<std::size_t>((e * depth + row) * columns + column)];
                            }));
  }
  /// Returns the number of decoded values that differ from the definition; values of the padding must be 0.
  int wrong() const {
    int count = 0;
    for (Index e = 0; e < experts; ++e)
      for (Index column = 0; column < matrix.stride; ++column)
        for (Index first = 0; first < depth; first += 32) {
          naive::Group expected{0, std::vector<double>(32)};
          if (column < columns) expected = group(e, first, column);
          for (Index k = first; k < depth && k < first + 32; ++k) {
            const double want = expected.scale * expected.q[static_cast<std::size_t>(k - first)],
                         got = double(decoded[static_cast<std::size_t>((e * depth + k) * matrix.stride + column)]);
            count += !(want == got || (std::isnan(want) && std::isnan(got)));
          }
        }
    return count;
  }
};

}  // namespace

TEST_CASE("cuda: QuantisedMatrix: decoded weights equal equations (1) to (3)") {
  Cuda::Context ctx;
  for (const Weights form : naive::quantised_forms)
    for (const auto& shape : {std::vector<Index>{2, 64, 8}, {3, 33, 7}, {1, 1, 1}, {2, 95, 5}, {4, 2, 4}}) {
      const Index experts = shape[0], depth = shape[1], columns = shape[2];
      CAPTURE(static_cast<int>(form));
      CAPTURE(depth);
      auto values = test::random_vector<float>(experts * depth * columns, 3);
      for (std::size_t i = 0; i < values.size(); ++i) values[i] = std::ldexp(values[i], static_cast<int>(i % 5) - 2);
      const Quantised weights(ctx, form, experts, depth, columns, values);
      CHECK(weights.wrong() == 0);
    }
}

TEST_CASE("cuda: QuantisedMatrix: encodes zeros, small groups, infinity and NaN") {
  Cuda::Context ctx;
  const float infinity = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> special{0,        -0.0F,     0x1p-100F, 0x1.fffffep-101F, 0x1p-127F, 0x1p-149F,
                                   infinity, -infinity, nan,       0x1.9p127F};
  const auto columns = static_cast<Index>(special.size()), depth = Index(40);
  std::vector<float> values(static_cast<std::size_t>(depth * columns));
  for (std::size_t j = 0; j < special.size(); ++j) {
    values[3 * special.size() + j] = special[j];
    values[4 * special.size() + j] = special[j] / -2;
    values[35 * special.size() + j] = 1;
  }
  for (const Weights form : naive::quantised_forms) {
    CAPTURE(static_cast<int>(form));
    CHECK(Quantised(ctx, form, 1, depth, columns, values).wrong() == 0);
  }
}

TEST_CASE("cuda: QuantisedMatrix: stores numbers and scales in known order") {
  Cuda::Context ctx;
  const Index experts = 2, depth = 35, columns = 3, stride = 4;
  const auto values = test::random_vector<float>(experts * depth * columns, 5);
  for (const Weights form : {Weights::int8, Weights::int4}) {
    const Quantised weights(ctx, form, experts, depth, columns, values);
    const Index number_rows = form == Weights::int8 ? 35 : 18;
    int wrong = 0;
    for (Index e = 0; e < experts; ++e)
      for (Index column = 0; column < columns; ++column)
        for (Index k = 0; k < depth; ++k) {
          const naive::Group group = weights.group(e, k / 32 * 32, column);
          const Index row = form == Weights::int8 ? k : k / 2;
          const int byte = weights.bytes[static_cast<std::size_t>((e * number_rows + row) * stride + column)];
          const int q = static_cast<int>(group.q[static_cast<std::size_t>(k % 32)]);
          wrong += form == Weights::int8 ? byte != (q & 255) : (byte >> (k % 2 * 4) & 15) != (q & 15);
          const auto at =
              weights.matrix.scales_at(experts) + static_cast<std::size_t>((e * 2 + k / 32) * stride + column) * 2;
          const auto bits = static_cast<std::uint16_t>(weights.bytes[at] | weights.bytes[at + 1] << 8);
          wrong += double(float(Bfloat16(bits))) != group.scale;
        }
    CHECK(wrong == 0);
  }
}

TEST_CASE("cuda: QuantisedMatrix: bytes() counts whole groups and padding") {
  const auto bytes = [](Weights form, Index experts, Index depth, Index columns) {
    return QuantisedMatrix{{form}, depth, divide_up(columns, Index(4)) * 4}.bytes(experts);
  };
  CHECK(bytes(Weights::int8, 3, 64, 8) == 3 * 2 * 8 * 34);
  CHECK(bytes(Weights::int4, 3, 64, 8) == 3 * 2 * 8 * 18);
  CHECK(bytes(Weights::mxfp4, 3, 64, 8) == 3 * 2 * 8 * 18);
  CHECK(bytes(Weights::int8, 1, 33, 5) == 33 * 8 + 2 * 8 * 2);
  CHECK(bytes(Weights::int4, 1, 33, 5) == 17 * 8 + 2 * 8 * 2);
  CHECK(bytes(Weights::int4, 1, 1, 1) == 8 + 1 * 4 * 2);  // the scales begin at a multiple of 8 bytes
}

TEST_CASE("cuda: QuantisedMatrix: rows of experts with slots round to bfloat16") {
  Cuda::Context ctx;
  const Index experts = 3, depth = 35;
  test::DeviceArray<Index> offsets(ctx, {0, 2, 2, 5});
  for (const Weights form : naive::quantised_forms)
    for (const Index columns : {1, 6, 8, 13}) {
      CAPTURE(static_cast<int>(form));
      CAPTURE(columns);
      const Index stride = bf16_stride(columns);
      const auto values = test::random_vector<float>(experts * depth * columns, 5);
      test::DeviceArray<float> from(ctx, values);
      PackedWeights packed;
      packed.add_quantised(ctx.stream(), from.data(), experts, depth, columns, form);
      test::DeviceArray<std::uint16_t> to(
          ctx, std::vector<std::uint16_t>(static_cast<std::size_t>(experts * depth * stride), 0x1234));
      round_rows(ctx.stream(), experts * depth, columns, *packed.find_quantised(from.data()),
                 reinterpret_cast<Bfloat16*>(to.data()), RoundedRows{.offsets = offsets.data(), .each = depth});
      const auto got = to.values();
      int wrong = 0;
      for (Index e = 0; e < experts; ++e)
        for (Index column = 0; column < stride; ++column)
          for (Index k = 0; k < depth; ++k) {
            const std::uint16_t bits = got[static_cast<std::size_t>((e * depth + k) * stride + column)];
            if (e == 1) {
              wrong += bits != 0x1234;  // an expert without slots
              continue;
            }
            double expected = 0;
            if (column < columns) {
              const naive::Group group =
                  naive::quantised(form, naive::group_of(k / 32 * 32, depth, [&](Index row) {
                                     return values[static_cast<std::size_t>((e * depth + row) * columns + column)];
                                   }));
              expected = naive::bf16(group.scale * group.q[static_cast<std::size_t>(k % 32)]);
            }
            wrong += double(float(Bfloat16(bits))) != expected;
          }
      CHECK(wrong == 0);
    }
}
