#include "gatefold/backend/groups.hpp"

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

/// Returns the expert of a slot by looking at every expert, -1 past the last slot.
Index expert_of(const std::vector<Index>& offsets, Index slot) {
  for (std::size_t e = 0; e + 1 < offsets.size(); ++e)
    if (offsets[e] <= slot && slot < offsets[e + 1]) return static_cast<Index>(e);
  return -1;
}

std::vector<Index> offsets_of(const std::vector<Index>& counts) {
  std::vector<Index> offsets{0};
  for (const Index count : counts) offsets.push_back(offsets.back() + count);
  return offsets;
}

}  // namespace

TEST_CASE("Groups: expert() returns the expert of every slot") {
  std::vector<Index> many(257, 2);
  many[0] = many[100] = many[101] = many[256] = 0;
  for (const std::vector<Index>& counts :
       {std::vector<Index>{5}, {1, 1, 1}, {0, 0, 3, 0, 2, 0}, {7, 0, 0, 0}, {0, 0, 0, 7}, {0, 0, 0}, {0}, many}) {
    const std::vector<Index> offsets = offsets_of(counts);
    const Groups<Cpu> groups{offsets, {}, offsets.back()};
    CAPTURE(counts.size());
    CHECK(groups.experts() == static_cast<Index>(counts.size()));
    for (Index s = 0; s < offsets.back() + 3; ++s) {
      CAPTURE(s);
      CHECK(groups.expert(s) == expert_of(offsets, s));
    }
  }
}

TEST_CASE("Groups: works without experts") {
  const std::vector<Index> offsets{0};
  const Groups<Cpu> groups{offsets, {}, 0};
  CHECK(groups.experts() == 0);
  CHECK(groups.expert(0) == -1);
}

TEST_CASE("Groups: slots read listed rows or their own") {
  const std::vector<Index> offsets{0, 2, 3}, rows{7, 4, 7};
  const Groups<Cpu> groups{offsets, rows, 3};
  CHECK(groups.row(0) == 7);
  CHECK(groups.row(1) == 4);
  CHECK(groups.row(2) == 7);
  const Groups<Cpu> own = groups.in_slot_order();
  for (Index s = 0; s < 3; ++s) CHECK(own.row(s) == s);
  CHECK(own.slots == 3);
  CHECK(own.experts() == 2);
  CHECK(own.offsets.data() == offsets.data());
}

TEST_CASE("Groups: a range of experts keeps slot numbers") {
  const std::vector<Index> offsets = offsets_of({2, 0, 3, 1});
  const std::vector<Index> rows{10, 11, 12, 13, 14, 15};
  const Groups<Cpu> groups{offsets, rows, 6};
  const Groups<Cpu> middle = groups.experts(1, 2);
  CHECK(middle.experts() == 2);
  CHECK(middle.offsets(0) == 2);
  CHECK(middle.offsets(1) == 2);
  CHECK(middle.offsets(2) == 5);
  for (Index s = 2; s < 5; ++s) {
    CHECK(middle.expert(s) == 1);
    CHECK(middle.row(s) == groups.row(s));
  }
  CHECK(middle.expert(5) == -1);
  CHECK(groups.experts(3, 0).experts() == 0);
}

TEST_CASE("Groups: a range of experts excludes slots of other experts") {
  const std::vector<Index> offsets{0, 2, 2, 5, 7};
  const Groups<Cpu> all{View<const Index, 1, Cpu>(offsets.data(), 5), {}, 7};
  const Groups<Cpu> part = all.experts(1, 2);  // experts 1 (empty) and 2: slots 2, 3, 4
  const std::vector<Index> expected{-1, -1, 1, 1, 1, -1, -1};
  for (Index s = 0; s < 7; ++s) CHECK(part.expert(s) == expected[static_cast<std::size_t>(s)]);
}

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
