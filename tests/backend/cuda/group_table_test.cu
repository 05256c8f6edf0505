// The plan of a table of keys, for one tile and many.
#include "gatefold/backend/cuda/group_table.cuh"

#include <doctest/doctest.h>

#include <climits>
#include <vector>

#include "support/device_array.cuh"
#include "support/tables.hpp"

using namespace gatefold;
using namespace gatefold::test;

namespace {

TablePlan plan_of(const KeyTable& t) {
  Cuda::Context ctx;
  TablePlan p(t, -7);
  DeviceArray<Index> keys(ctx, t.keys), offsets(ctx, p.offsets), order(ctx, p.order), rows(ctx, p.rows),
      row_offsets(ctx, p.row_offsets), row_slots(ctx, p.row_slots);
  const Index n = t.rows * t.columns;
  Cuda::group_table(ctx, keys.in(t.rows, t.columns), offsets.as(t.groups + 1), order.as(n), rows.as(n),
                    row_offsets.as(t.rows + 1), row_slots.as(n));
  p.offsets = offsets.values();
  p.order = order.values();
  p.rows = rows.values();
  p.row_offsets = row_offsets.values();
  p.row_slots = row_slots.values();
  return p;
}

}  // namespace

TEST_CASE("cuda: group_table: equals its definition and finds each key's slot") {
  for (const KeyTable& t : tables()) {
    CAPTURE(t.rows);
    CAPTURE(t.columns);
    CAPTURE(t.groups);
    CHECK(plan_of(t) == defined(t));
  }
}

TEST_CASE("cuda: group_table: is correct if sums need several rounds") {
  const KeyTable t = table(9000, 2, 700);
  CHECK(plan_of(t) == defined(t));
}

TEST_CASE("fits_table: accepts only tables within its limits") {
  using detail_::device::fits_table;
  using detail_::device::TableTile;
  CHECK(fits_table(0, 1, 1));
  CHECK(fits_table(INT_MAX - TableTile::threads, TableTile::most_each, TableTile::most_groups));
  CHECK(!fits_table(INT_MAX - TableTile::threads + 1, 2, 8));
  CHECK(!fits_table(8, 0, 8));
  CHECK(!fits_table(8, TableTile::most_each + 1, 8));
  CHECK(!fits_table(8, 2, 0));
  CHECK(!fits_table(8, 2, TableTile::most_groups + 1));
  CHECK(TableTile::bytes(TableTile::most_groups) <= 48 * 1024 - 1024);  // 1 KiB is left for a scan
}
