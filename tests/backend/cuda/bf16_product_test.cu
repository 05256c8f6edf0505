// The grouped products of bfloat16 on tensor cores, compared with sums in double of the rounded factors.
#include "gatefold/backend/cuda/bf16_product.cuh"

#include <doctest/doctest.h>

#include <random>
#include <vector>

#include "support/bf16_product.cuh"

using namespace gatefold;
using namespace gatefold::test;

namespace {

/// Returns the first `rows` result rows of each of two experts with `count` rows, or with `alone` only the rows of the
/// first expert. These rows must have the same bits in every call.
std::vector<float> rows_of(OnDevice& on, Index count, Index rows, bool transpose, bool alone = false) {
  const Index experts = alone ? 1 : 2;
  const ProductCase c{.counts = std::vector<Index>(static_cast<std::size_t>(experts), count),
                      .depth = 200,
                      .columns = 72,
                      .transpose = transpose,
                      .more = 0};
  std::vector<float> a_values;
  for (int e = 0; e < experts; ++e) {
    const auto of_expert = random_vector<float>(count * c.depth, 40 + e);
    a_values.insert(a_values.end(), of_expert.begin(), of_expert.end());
  }
  BothGroups groups(on.memory, c);
  Both<float> a(on.memory, a_values), w(on.memory, random_vector<float>(experts * c.depth * c.columns, 2)),
      out(on.memory, std::vector<float>(static_cast<std::size_t>(c.slots() * c.columns)));
  CudaBf16::grouped_gemm(on.ctx, on.groups(groups), of_bf16(a.device.in(c.slots(), c.depth)),
                         of_bf16(weights_view(w.device, experts, c.depth, c.columns, transpose)), transpose,
                         {out.device.data(), c.slots(), c.columns}, functor::Store{});
  on.ctx.synchronize();
  const auto all = out.device.values();
  std::vector<float> kept;
  for (int e = 0; e < experts; ++e) {
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(e * count * c.columns);
    kept.insert(kept.end(), begin, begin + static_cast<std::ptrdiff_t>(rows * c.columns));
  }
  return kept;
}

/// Row counts at the edges of tiles, and experts without rows.
const std::vector<Index> kFew = {0, 1, 15, 16, 17, 0, 3}, kSome = {0, 63, 64, 65, 31, 0}, kMany = {129, 0, 127, 300};

}  // namespace

TEST_CASE("cuda: bfloat16 products equal naive sums for every tile shape") {
  OnDevice on;
  struct Size {
    Index depth, columns;
  };
  for (const auto& [counts, rows] : {std::pair(kFew, 16), std::pair(kSome, 64), std::pair(kMany, 128)})
    for (const Size& size : {Size{64, 128}, Size{200, 72}, Size{1, 1}, Size{13, 150}, Size{66, 9}})
      for (const bool transpose : {false, true})
        for (const bool gather : {false, true}) {
          const Values kind = gather == transpose ? Values::integers : Values::reals;
          const ProductCase c{.counts = counts,
                              .depth = size.depth,
                              .columns = size.columns,
                              .transpose = transpose,
                              .gather = gather,
                              .a_skip = size.depth % 3,
                              .w_skip = size.depth % 2,
                              .first = 5};
          CAPTURE(c);
          CHECK(detail_::device::bf16_tile_rows(c.slots(), c.experts()) == rows);
          CHECK(product_differs(on, c, kind) == "");
        }
}

TEST_CASE("cuda: sums of two bfloat16 products equal naive sums") {
  OnDevice on;
  for (const auto& [counts, rows] : {std::pair(kFew, 16), std::pair(kSome, 64), std::pair(kMany, 128)})
    for (const auto& [depth, columns] : {std::pair(64, 128), std::pair(200, 72), std::pair(13, 150)})
      for (const bool transpose : {false, true})
        for (const bool gather : {false, true}) {
          const Values kind = gather == transpose ? Values::integers : Values::reals;
          const ProductCase c{.counts = counts,
                              .depth = depth,
                              .columns = columns,
                              .transpose = transpose,
                              .gather = gather,
                              .first = 5};
          CAPTURE(c);
          CHECK(detail_::device::bf16_tile_rows(c.slots(), c.experts()) == rows);
          CHECK(sum_of_products_differs(on, c, kind) == "");
        }
}

TEST_CASE("cuda bfloat16 products: column sums equal the reference") {
  OnDevice on;
  for (const auto& [counts, rows] : {std::pair(kFew, 16), std::pair(kSome, 64), std::pair(kMany, 128)})
    for (const auto& [depth, columns] : {std::pair(64, 128), std::pair(20, 300), std::pair(13, 33), std::pair(7, 1)})
      for (const bool transpose : {false, true}) {
        const Values kind = transpose ? Values::integers : Values::reals;
        const ProductCase c{.counts = counts,
                            .depth = depth,
                            .columns = columns,
                            .transpose = transpose,
                            .gather = depth % 2 == 0,
                            .a_skip = depth % 3,
                            .first = 5};
        CAPTURE(c);
        CHECK(detail_::device::bf16_tile_rows(c.slots(), c.experts()) == rows);
        CHECK(column_sums_differ(on, c, kind) == "");
      }
  for (const int width : {16, 32, 64}) {  // few rows: tiles of every width
    const Index columns = width * on.ctx.multiprocessors() - 3;
    const ProductCase c{.counts = {3}, .depth = 20, .columns = columns, .transpose = true};
    CAPTURE(c);
    CHECK(column_sums_differ(on, c, Values::reals) == "");
  }
}

TEST_CASE("cuda: bfloat16 products of few rows equal naive sums") {
  OnDevice on;
  const int multiprocessors = on.ctx.multiprocessors();
  REQUIRE(multiprocessors >= 4);
  struct Size {
    Index columns;
    int width;
  };
  // With one expert, tiles have 32 columns for up to 64 (multiprocessors / 2) columns, 64 columns for up to
  // 128 (multiprocessors − 1) columns, and 128 columns otherwise.
  for (const Size& size :
       {Size{1, 32}, Size{40, 32}, Size{64 * (multiprocessors / 2), 32}, Size{64 * (multiprocessors / 2) + 1, 64},
        Size{128 * (multiprocessors - 1), 64}, Size{128 * (multiprocessors - 1) + 1, 128}}) {
    CHECK(detail_::device::bf16_skinny_columns(1, size.columns, multiprocessors) == size.width);
    for (const Index depth : {8, 33, 150})
      for (const bool transpose : {false, true})
        for (const bool gather : {false, true}) {
          const ProductCase c{.counts = {5},
                              .depth = depth,
                              .columns = size.columns,
                              .transpose = transpose,
                              .gather = gather,
                              .w_skip = depth % 2,
                              .first = 2};
          CAPTURE(c);
          CHECK(product_differs(on, c, gather == transpose ? Values::integers : Values::reals) == "");
        }
  }
}

TEST_CASE("cuda: bfloat16 gradients equal naive sums, added or stored") {
  OnDevice on;
  for (const auto& [depth, columns] : {std::pair(64, 136), std::pair(5, 3), std::pair(130, 20)})
    for (const bool gather : {false, true})
      for (const bool scattered : {false, true})
        for (const bool accumulate : {false, true}) {
          const Values kind = accumulate == scattered ? Values::integers : Values::reals;
          const ProductCase c{.counts = {0, 1, 63, 64, 0, 150},
                              .depth = depth,
                              .columns = columns,
                              .gather = gather,
                              .a_skip = depth % 2,
                              .first = 3};
          CAPTURE(c);
          CAPTURE(scattered);
          CHECK(gradient_differs(on, c, kind, accumulate, scattered) == "");
        }
}

TEST_CASE("cuda: bfloat16 products: a row's bits are independent of batch") {
  OnDevice on;
  const auto width = [&](Index experts) {
    return detail_::device::bf16_skinny_columns(experts, 72, on.ctx.multiprocessors());
  };
  CHECK(width(2) <= 64);  // narrow tiles for few rows of two experts of 72 columns
  CHECK(width(1) == 32);
  for (const bool transpose : {false, true}) {
    const auto few = rows_of(on, 7, 7, transpose);
    const auto alone = rows_of(on, 7, 7, transpose, true);
    CHECK(difference({few.begin(), few.begin() + static_cast<std::ptrdiff_t>(alone.size())}, alone) == "");
    CHECK(difference(few, rows_of(on, 40, 7, transpose)) == "");
    CHECK(difference(few, rows_of(on, 200, 7, transpose)) == "");
  }
}

TEST_CASE("cuda: bfloat16 products equal naive sums for random cases") {
  OnDevice on;
  std::mt19937 random(7);
  const auto draw = [&](Index least, Index most) {
    return least + static_cast<Index>(random() % static_cast<unsigned>(most - least + 1));
  };
  for (int round = 0; round < 12; ++round) {
    ProductCase c{.counts = {}, .depth = draw(1, 150), .columns = draw(1, 150)};
    const Index most = draw(0, 2) == 0 ? 150 : 20;
    for (Index e = draw(1, 40); e > 0; --e) c.counts.push_back(draw(0, 3) == 0 ? 0 : draw(0, most));
    c.transpose = draw(0, 1) == 1;
    c.gather = draw(0, 1) == 1;
    c.first = draw(0, 9);
    CAPTURE(c);
    CHECK(product_differs(on, c, Values::reals) == "");
    CHECK(gradient_differs(on, c, Values::reals, draw(0, 1) == 1, draw(0, 1) == 1) == "");
  }
}
