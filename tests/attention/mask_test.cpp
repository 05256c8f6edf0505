#include "gatefold/attention/mask.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/backend/initial_values.hpp"
#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::support;

namespace {

constexpr double hidden = -std::numeric_limits<double>::infinity();

}  // namespace

TEST_CASE("Mask: rows see their sequence, up to themselves if causal") {
  const std::vector<double> keys(24, 1.0);
  Cpu::Context ctx(1);
  for (const bool causal : {false, true})
    for (const detail_::attending::BlockSize size :
         {detail_::attending::BlockSize{}, detail_::attending::BlockSize{3, 2}}) {
      const detail_::attending::Mask<double, Cpu> mask{8, causal, keys};
      std::vector<Index> seen(24);
      detail_::attending::for_each_block(ctx, 24, 8, causal, size, [&](auto&, const detail_::attending::Block& block) {
        for (Index r = 0; r < block.all_rows(); ++r) {
          const Index i = mask.item(block, r), count = mask.count(block, r);
          CHECK(i == block.row + r);
          REQUIRE(count <= block.keys);
          for (Index j = 0; j < count; ++j) {
            const Index key = block.first_key(r) + j;
            CHECK(key / 8 == i / 8);
            CHECK((!causal || key <= i));
          }
          seen[std::size_t(i)] += count;
        }
      });
      for (Index i = 0; i < 24; ++i) CHECK(seen[std::size_t(i)] == (causal ? i % 8 + 1 : 8));
    }
}

TEST_CASE("Mask: a window limits which earlier keys a row sees") {
  const std::vector<double> keys(24, 1.0);
  Cpu::Context ctx(1);
  for (const bool itself : {false, true})
    for (const Index width : {1, 3, 8, 20})
      for (const detail_::attending::BlockSize size :
           {detail_::attending::BlockSize{}, detail_::attending::BlockSize{3, 2}}) {
        detail_::attending::Mask<double, Cpu> mask{8, true, keys};
        mask.window = {8, 0, width, itself};
        std::vector<std::vector<Index>> seen(24);
        detail_::attending::for_each_block(ctx, 24, 8, true, size, [&](auto&, const detail_::attending::Block& block) {
          for (Index r = 0; r < block.all_rows(); ++r)
            for (Index j = 0; j < mask.count(block, r); ++j)
              seen[std::size_t(block.row + r)].push_back(block.first_key(r) + mask.first(block, r) + j);
        });
        for (Index i = 0; i < 24; ++i) {
          std::vector<Index> expected;
          for (Index j = i / 8 * 8; j <= i; ++j)
            if (itself ? i - j < width : i - j >= 1 && i - j <= width) expected.push_back(j);
          CHECK(seen[std::size_t(i)] == expected);
        }
      }
}

TEST_CASE("Mask: hides padding and keys less certain than the row") {
  const std::vector<double> keys{1, hidden, quiet_nan, 1}, rows{1, 0, 1, 1}, entropy{0.5, 0.1, 0.2, 0.7};
  detail_::attending::Mask<double, Cpu> mask{4, false, keys, rows};
  const detail_::attending::Block block{0, 4, 0, 4, 1};
  const OneElement<double> at;
  CHECK(mask.count(block, 0) == 4);
  CHECK(mask.count(block, 1) == 0);
  CHECK(mask.seen(at, 0, 0, 3.0) == 3);
  CHECK(mask.seen(at, 0, 1, quiet_nan) == hidden);
  CHECK(std::isnan(mask.seen(at, 0, 2, 3.0)));
  CHECK(mask.seen(at, 0, 3, 3.0) == 3);
  mask.entropy = entropy;
  CHECK(mask.seen(at, 0, 0, 3.0) == 3);
  CHECK(mask.seen(at, 0, 3, 3.0) == hidden);
  CHECK(mask.seen(at, 3, 0, 3.0) == 3);
}

TEST_CASE("Keys: nonfinite keys get mask NaN; padding is hidden") {
  Cpu::Context ctx(2);
  constexpr Index items = 6, heads = 2, length = 3;
  const detail_::attending::HeadRows rows{heads, length};
  auto of = uniform_tensor<double>(ctx, Seed{1}, 1, items * heads, 3);
  const double infinite = std::numeric_limits<double>::infinity();
  of(1, 0) = quiet_nan;
  of(4, 2) = infinite;
  of(7, 1) = -infinite;
  const std::vector<double> valid{1, 1, 0, 1, 1, 1};
  auto mark = ctx.mark();
  const detail_::attending::Keys<double, Cpu> keys(ctx, valid, of, rows);
  for (Index m = 0; m < items * heads; ++m) {
    const bool finite = m != 1 && m != 4 && m != 7;
    for (Index c = 0; c < 3; ++c) CHECK(keys.values(m, c) == (finite ? of(m, c) : 0));
    if (rows.item(m) == 2)
      CHECK(keys.mask(m) == hidden);
    else if (finite)
      CHECK(keys.mask(m) == 1);
    else
      CHECK(std::isnan(keys.mask(m)));
  }
}
