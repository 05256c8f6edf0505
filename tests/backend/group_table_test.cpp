#include "gatefold/backend/group_table.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "support/naive_backend.hpp"
#include "support/tables.hpp"

using namespace gatefold;
using namespace gatefold::test;

namespace {

template <class B>
TablePlan plan_of(const KeyTable& t) {
  typename B::Context ctx;
  TablePlan p(t, -7);
  const auto view = [](std::vector<Index>& v) { return View<Index, 1, B>(v.data(), v.size()); };
  B::group_table(ctx, View<const Index, 2, B>(t.keys.data(), t.rows, t.columns), view(p.offsets), view(p.order),
                 view(p.rows), view(p.row_offsets), view(p.row_slots));
  return p;
}

}  // namespace

TEST_CASE("group_table: equals its definition and finds each key's slot") {
  for (const KeyTable& t : tables()) {
    CAPTURE(t.rows);
    CAPTURE(t.columns);
    CAPTURE(t.groups);
    CHECK(plan_of<Cpu>(t) == defined(t));
    CHECK(plan_of<Naive>(t) == defined(t));
  }
}
