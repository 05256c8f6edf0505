#include "gatefold/attention/following.hpp"

#include <doctest/doctest.h>

#include <set>
#include <utility>

#include "support/followed.hpp"

using namespace gatefold;
using support::Followed;

namespace {

constexpr Index lengths[] = {1, 2, 5, 127, 128, 129, 255, 256, 257, 300, 513, 600};

}  // namespace

TEST_CASE("Following: sorts a block's rows by head; keys are contiguous") {
  for (const Index length : lengths) {
    CAPTURE(length);
    const Index items = 3 * length;
    const Followed f(3, items, length);
    std::set<Index> keys;
    for (Index row = 0; row < items; ++row) {
      const Index i = f.following.item(row);
      REQUIRE(f.following.row(i) == row);
      REQUIRE(f.following.block(i) == f.following.block(row));
      if (row > 0 && f.following.block(row) == f.following.block(row - 1)) {
        const Index before = f.following.item(row - 1);
        REQUIRE(std::pair{f.head(before), before} < std::pair{f.head(i), i});
      }
      for (Index h = 0; h < 3; ++h) keys.insert(f.following.key(row, h));
    }
    CHECK(static_cast<Index>(keys.size()) == 3 * items);
    CHECK(*keys.begin() == 0);
    CHECK(*keys.rbegin() == 3 * items - 1);
  }
}

TEST_CASE("Following: with one head nothing is reordered") {
  const Followed f(1, 12, 4);
  for (Index n = 0; n < 12; ++n) {
    CHECK(f.following.item(n) == n);
    CHECK(f.following.row(n) == n);
    CHECK(f.following.key(n, 0) == n);
    CHECK(f.following.key_for(n, n) == n);
  }
  CHECK(f.following.block_size().keys == detail_::attending::BlockSize{}.keys);
}
