// Hopper's kernel of grouped bfloat16 products, compared with sums in double and bit by bit with the kernel for all
// devices.
#include "gatefold/backend/cuda/hopper_product.cuh"

#include <doctest/doctest.h>

#include <random>
#include <tuple>
#include <type_traits>
#include <vector>

#include "gatefold/backend/cuda/bf16_experts.cuh"
#include "support/bf16_product.cuh"
#include "support/rounded_once.cuh"

using namespace gatefold;
using namespace gatefold::test;
using detail_::device::Layout;

namespace {

/// Row counts of experts with many rows, whose last tile is not full, and of experts without rows. The counts are no
/// multiples of a tile's depth.
const std::vector<Index> kCounts = {0, 200, 129, 0};

/// Returns whether Hopper's kernel computes the product.
bool by_hopper(OnDevice& on, const ProductCase& c) {
  BothGroups groups(on.memory, c);
  return detail_::device::uses_hopper(on.ctx, on.groups(groups), c.columns);
}

/// Doubles the sums of one matrix, or subtracts the sums of two.
struct TwiceOrDifference {
  template <class A>
  GATEFOLD_HD typename A::Value operator()(const A&, Index, Index, Index, typename A::Value v) const {
    return v + v;
  }
  template <class A>
  GATEFOLD_HD typename A::Value operator()(const A&, Index, Index, Index, typename A::Value v,
                                           typename A::Value w) const {
    return v - w;
  }
};

using AddsTo = functor::AddTo<float, CudaBf16>;

/// Rows and columns of random bfloat16 numbers on the device, with zeros that fill the rows up to whole units.
struct Matrix {
  DeviceArray<Bfloat16> values;
  Index stride;
  Matrix(Cuda::Context& ctx, Index rows, Index columns, std::uint64_t seed)
      : values(ctx, numbers(rows, columns, seed)), stride(detail_::device::bf16_stride(columns)) {}
  static std::vector<Bfloat16> numbers(Index rows, Index columns, std::uint64_t seed) {
    const auto v = random_vector<float>(rows * columns, seed);
    const Index stride = detail_::device::bf16_stride(columns);
    std::vector<Bfloat16> to(static_cast<std::size_t>(rows * stride), Bfloat16{});
    for (Index r = 0; r < rows; ++r)
      for (Index j = 0; j < columns; ++j)
        to[static_cast<std::size_t>(r * stride + j)] = Bfloat16::from(v[static_cast<std::size_t>(r * columns + j)]);
    return to;
  }
  detail_::device::Bf16Matrix get() { return {values.data(), stride}; }
};

/// Compares one product by Hopper's kernel and by the kernel for all devices, bit by bit.
/// @tparam Count  the number of second factors
/// @param skip  number of values before the beginning of c and of the addend
template <Layout OfB, int Count, class C, class E = TwiceOrDifference, int Terms = 1>
void check_bits(Index depth, Index columns, Index skip = 0) {
  Cuda::Context memory;
  CudaBf16::Context ctx;
  const ProductCase c{.counts = kCounts, .depth = depth, .columns = columns, .first = 9};
  CAPTURE(c);
  const bool along_depth = OfB == Layout::along_depth;
  Matrix a(memory, c.slots(), depth, 1),
      b(memory, c.experts() * (along_depth ? columns : depth), along_depth ? depth : columns, 2),
      other(memory, c.experts() * (along_depth ? columns : depth), along_depth ? depth : columns, 3),
      other_a(memory, c.slots(), depth, 5);
  detail_::device::EachBf16<Terms> of_a{{a.get()}};
  if constexpr (Terms == 2) of_a.of[1] = other_a.get();
  detail_::device::EachBf16<Count> each{{b.get()}};
  if constexpr (Count == 2) each.of[1] = other.get();
  DeviceArray<Index> offsets(memory, c.offsets());
  const Index stride = std::is_same_v<C, float> ? columns : detail_::device::bf16_stride(columns),
              step = (along_depth ? columns : depth) * b.stride;
  const std::vector<C> before(static_cast<std::size_t>(skip + c.slots() * stride), C(Bfloat16::from(-77)));
  DeviceArray<C> one(memory, before), two(memory, before);
  DeviceArray<float> addend(memory, random_vector<float>(skip + c.slots() * stride, 4));
  E epilogue{};
  if constexpr (std::is_same_v<E, AddsTo>) epilogue.addend = {addend.data() + skip, c.slots(), stride};
  detail_::device::bf16_slots_are_rows<OfB>(ctx, of_a, each, step, offsets.data(), c.experts(), c.slots(), columns,
                                            depth, one.data() + skip, stride, epilogue);
  detail_::device::hopper_slots_are_rows<OfB>(ctx, of_a, each, step, offsets.data(), c.experts(), c.slots(), columns,
                                              depth, two.data() + skip, stride, epilogue);
  ctx.synchronize();
  CHECK(difference(one.values(), two.values()) == "");
}

/// Compares the sums over columns by Hopper's kernel and by the kernel for all devices, bit by bit.
void check_column_sums(Index depth, Index columns) {
  Cuda::Context memory;
  CudaBf16::Context ctx;
  const ProductCase c{.counts = kCounts, .depth = depth, .columns = columns, .first = 9};
  CAPTURE(c);
  Matrix a(memory, c.slots(), depth, 1), b(memory, c.experts() * columns, depth, 2);
  const detail_::device::EachBf16<1> of_a{{a.get()}}, of_b{{b.get()}};
  DeviceArray<Index> offsets(memory, c.offsets());
  const auto size =
      static_cast<std::size_t>(c.slots() * detail_::device::row_elements<detail_::device::ColumnSum>(columns));
  DeviceArray<float> one(memory, std::vector<float>(size, -77)), two(memory, std::vector<float>(size, -77));
  const auto to = [](DeviceArray<float>& sums) { return reinterpret_cast<detail_::device::ColumnSum*>(sums.data()); };
  detail_::device::bf16_slots_are_rows<Layout::along_depth>(ctx, of_a, of_b, columns * b.stride, offsets.data(),
                                                            c.experts(), c.slots(), columns, depth, to(one), columns,
                                                            TwiceOrDifference{});
  detail_::device::hopper_slots_are_rows<Layout::along_depth>(ctx, of_a, of_b, columns * b.stride, offsets.data(),
                                                              c.experts(), c.slots(), columns, depth, to(two), columns,
                                                              TwiceOrDifference{});
  ctx.synchronize();
  CHECK(difference(one.values(), two.values()) == "");
}

}  // namespace

TEST_CASE("cuda: Hopper products: equal naive sums for every layout") {
  OnDevice on;
  REQUIRE(on.ctx.has_hopper_code());
  for (const bool transpose : {false, true})
    for (const bool gather : {false, true})
      for (const auto& [depth, columns, kind] :
           {std::tuple(64, 256, Values::reals), std::tuple(200, 300, Values::integers),
            std::tuple(13, 129, Values::reals)}) {
        const ProductCase c{.counts = kCounts,
                            .depth = depth,
                            .columns = columns,
                            .transpose = transpose,
                            .gather = gather,
                            .a_skip = depth % 3,
                            .w_skip = depth % 2,
                            .first = 5};
        CAPTURE(c);
        REQUIRE(by_hopper(on, c));
        CHECK(product_differs(on, c, kind) == "");
      }
}

TEST_CASE("cuda: Hopper gradients: match plain loops, stored or accumulated") {
  OnDevice on;
  REQUIRE(on.ctx.has_hopper_code());
  for (const bool accumulate : {false, true})
    for (const auto& [depth, columns, gather, scattered, kind] :
         {std::tuple(64, 128, false, false, Values::integers), std::tuple(130, 136, true, false, Values::reals),
          std::tuple(72, 300, false, true, Values::integers), std::tuple(64, 129, true, true, Values::reals)}) {
      const ProductCase c{.counts = {0, 1, 63, 64, 0, 130},
                          .depth = depth,
                          .columns = columns,
                          .gather = gather,
                          .a_skip = depth % 2,
                          .first = 3};
      CAPTURE(c);
      CHECK(gradient_differs(on, c, kind, accumulate, scattered) == "");
    }
}

TEST_CASE("cuda: Hopper products: have the bits of the general kernel") {
  check_bits<Layout::along_lines, 1, float>(136, 300);
  check_bits<Layout::along_depth, 1, float>(136, 300);
  check_bits<Layout::along_lines, 2, Bfloat16>(200, 140);
  check_bits<Layout::along_lines, 1, Bfloat16>(64, 260);
  check_bits<Layout::along_lines, 2, float, TwiceOrDifference, 2>(72, 140);
  check_bits<Layout::along_depth, 2, Bfloat16, functor::Store, 2>(136, 260);
}

TEST_CASE("cuda: Hopper products: read rows rounded once, in slot order") {
  for (const bool gather : {false, true})
    for (const Index count : {200, 9})  // with few slots, only the gradient uses Hopper's kernel
      check_rounded_once({.counts = {count, 0, count / 2}, .depth = 136, .columns = 140, .gather = gather, .first = 5});
  check_pair_in_place({.counts = {140, 0, 129}, .depth = 136, .columns = 130});
}

TEST_CASE("cuda: Hopper column sums: have the general kernel's bits") {
  OnDevice on;
  for (const auto& [depth, columns, gather] :
       {std::tuple(64, 256, false), std::tuple(136, 300, true), std::tuple(13, 129, false)}) {
    const ProductCase c{
        .counts = kCounts, .depth = depth, .columns = columns, .transpose = true, .gather = gather, .first = 5};
    CAPTURE(c);
    REQUIRE(by_hopper(on, c));
    CHECK(column_sums_differ(on, c, Values::reals) == "");
    check_column_sums(depth, columns);
  }
}

TEST_CASE("cuda: Hopper sums of two products: equal naive sums") {
  OnDevice on;
  for (const auto& [depth, columns, kind] :
       {std::tuple(64, 256, Values::reals), std::tuple(200, 300, Values::integers), std::tuple(13, 129, Values::reals)})
    for (const bool gather : {false, true})
      for (const bool transpose : {false, true}) {
        const ProductCase c{.counts = kCounts,
                            .depth = depth,
                            .columns = columns,
                            .transpose = transpose,
                            .gather = gather,
                            .first = 5};
        CAPTURE(c);
        REQUIRE(by_hopper(on, c));
        CHECK(sum_of_products_differs(on, c, kind) == "");
      }
}

TEST_CASE("cuda: Hopper stores: give the same bits in any tile") {
  for (const Index skip : {0, 1, 2}) {
    CAPTURE(skip);
    check_bits<Layout::along_lines, 1, float, functor::Store>(136, 520, skip);
    check_bits<Layout::along_depth, 1, float, functor::Store>(64, 259, skip);
    check_bits<Layout::along_lines, 1, float, AddsTo>(136, 520, skip);
    check_bits<Layout::along_depth, 1, float, AddsTo>(64, 259, skip);
  }
  check_bits<Layout::along_lines, 1, Bfloat16, functor::Store>(136, 520);
  check_bits<Layout::along_lines, 1, Bfloat16, AddsTo>(136, 520);  // rounded after they are added
  check_bits<Layout::along_lines, 1, Bfloat16, functor::Store>(64, 259);
}

TEST_CASE("cuda: Hopper products: persistent blocks reuse the ring of tiles") {
  OnDevice on;
  const Index columns = 256 * (on.ctx.multiprocessors() / 3 + 1) - 40;
  const ProductCase c{.counts = {140, 0, 260}, .depth = 72, .columns = columns, .gather = true};
  CAPTURE(c);
  REQUIRE(by_hopper(on, c));
  CHECK(product_differs(on, c, Values::integers) == "");
}

TEST_CASE("cuda: Hopper products: equal naive sums for random cases") {
  OnDevice on;
  std::mt19937 random(7);
  const auto draw = [&](Index least, Index most) {
    return least + static_cast<Index>(random() % static_cast<unsigned>(most - least + 1));
  };
  int by = 0;
  for (int round = 0; round < 8; ++round) {
    ProductCase c{.counts = {}, .depth = draw(64, 140), .columns = draw(128, 300)};
    for (Index e = draw(1, 3); e > 0; --e) c.counts.push_back(draw(0, 3) == 0 ? 0 : draw(100, 200));
    c.transpose = draw(0, 1) == 1;
    c.gather = draw(0, 1) == 1;
    c.first = draw(0, 9);
    CAPTURE(c);
    by += by_hopper(on, c);
    CHECK(product_differs(on, c, Values::reals) == "");
    CHECK(gradient_differs(on, c, Values::reals, draw(0, 1) == 1, draw(0, 1) == 1) == "");
  }
  CHECK(by >= 4);
}
