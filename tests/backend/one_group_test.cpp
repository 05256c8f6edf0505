#include "gatefold/backend/one_group.hpp"

#include <doctest/doctest.h>

#include "gatefold/backend/cpu/cpu.hpp"

using namespace gatefold;

TEST_CASE("one_group: all rows are slots of expert 0 in order") {
  Cpu::Context ctx(1);
  for (const Index rows : {0, 1, 257}) {
    const auto mark = ctx.mark();
    const Groups<Cpu> all = one_group(ctx, rows);
    CAPTURE(rows);
    CHECK(all.experts() == 1);
    CHECK(all.slots == rows);
    CHECK(all.offsets(0) == 0);
    CHECK(all.offsets(1) == rows);
    CHECK(all.rows.data() == nullptr);
    for (Index s = 0; s < rows; ++s) {
      CHECK(all.row(s) == s);
      CHECK(all.expert(s) == 0);
    }
    CHECK(all.expert(rows) == -1);
  }
}

TEST_CASE("EvenOffsets: expert e begins at e times the group size") {
  Index offsets[4] = {};
  const functor::EvenOffsets<Cpu> even{5, View<Index, 1, Cpu>(offsets, 4)};
  for (Index e = 0; e < 4; ++e) even(e);
  for (Index e = 0; e < 4; ++e) CHECK(offsets[e] == 5 * e);
}
