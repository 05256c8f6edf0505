#include "gatefold/backend/cpu/product_schedule.hpp"

#include <doctest/doctest.h>

#include <random>
#include <vector>

#include "gatefold/backend/cpu/schedule.hpp"

using namespace gatefold;
using cpu::Batch;
using cpu::WeightPath;

namespace {

/// A product for tests of its schedule, which reads sizes but no elements. `counts` has the number of slots of each
/// expert. All three matrices point to one unused number.
template <class P = float>
struct Counted {
  float none = 0;
  std::vector<Index> offsets{0};
  Batch<P> batch;

  Counted(const std::vector<Index>& counts, Index size, Index columns, bool outer = false) {
    for (const Index n : counts) offsets.push_back(offsets.back() + n);
    batch.all.a.data = batch.all.b.data = batch.all.c = &none;
    batch.all.columns = columns;
    (outer ? batch.all.rows : batch.all.depth) = size;
    batch.all.a.lines_are_rows = !outer;
    batch.all.b.lines_are_rows = false;
    batch.slots = outer ? Batch<P>::Slots::are_depth : Batch<P>::Slots::are_rows;
    batch.offsets = offsets.data();
    batch.experts = static_cast<Index>(counts.size());
    batch.accumulate = outer;
  }
  Counted(const Counted&) = delete;
  WeightPath path(Index e, int threads = 1, bool stores = true) const {
    return cpu::ProductSchedule<P>(batch, stores, threads).path(batch[e]);
  }
};

}  // namespace

TEST_CASE("ProductSchedule: many rows share packed B unless B is plain") {
  constexpr Index one = cpu::tuning.product_tiles * cpu::tuning.tile_rows;
  Counted<> c({1, 8, 9, one, one + 1}, 300, 400);
  for (const Index e : {0, 1, 2, 3}) CHECK(c.path(e) == WeightPath::by_task);
  CHECK(c.path(4) == WeightPath::by_task);
  const Index rows[] = {0};
  const auto packs = [&] {
    for (const Index e : {0, 1, 2, 3}) CHECK(c.path(e) == WeightPath::by_task);
    CHECK(c.path(4) == WeightPath::by_call);
  };
  c.batch.all.b.lines_are_rows = true;  // transposed
  packs();
  c.batch.all.b.lines_are_rows = false;
  c.batch.all.b.rows = rows;  // gathered
  packs();
  c.batch.all.b.rows = nullptr;
  c.batch.all.columns = cpu::Tile<float>::columns - 1;  // narrow
  packs();
  const float packed = 0;
  c.batch.all.packed = {&packed, nullptr};
  for (Index e = 0; e < 5; ++e) CHECK(c.path(e) == WeightPath::prepacked);
}

TEST_CASE("ProductSchedule: uses rank updates for gradients of few slots") {
  Counted<> c({1, 32, 33, 0}, 60, 400, true);  // 60 rows are one block, even with tiles of six rows
  CHECK(c.path(0) == WeightPath::rank_update);
  CHECK(c.path(1) == WeightPath::rank_update);
  CHECK(c.path(2) == WeightPath::by_task);
  CHECK(c.path(0, 1, false) == WeightPath::by_task);
  CHECK(c.batch[3].rows == 0);
}

TEST_CASE("ProductSchedule: non-temporal stores need one block and whole panels") {
  using Tile = cpu::Tile<float>;
  alignas(64) float c = 0;
  // `how` are functions that change the batch so that it breaks one of the conditions
  const auto streams = [&](Index depth, Index columns, auto... how) {
    Counted<> counted({depth}, 60, columns, true);
    counted.batch.accumulate = false;
    counted.batch.all.c = &c;
    counted.batch.all.c_stride = columns;
    (how(counted.batch), ...);
    return cpu::ProductSchedule<float>(counted.batch, true, 1).streams(counted.batch[0]);
  };
  constexpr Index columns = 4 * Tile::columns;
  for (const Index depth : {Index(0), Index(32), Index(33), Tile::depth}) {
    CHECK(streams(depth, columns));
    CHECK_FALSE(streams(depth, columns + Tile::size));
    CHECK_FALSE(streams(depth, columns, [](Batch<float>& b) { b.accumulate = true; }));
    CHECK_FALSE(streams(depth, columns, [](Batch<float>& b) { b.stays_cached = true; }));
    CHECK_FALSE(streams(depth, columns, [](Batch<float>& b) { b.all.c += 1; }));
    CHECK_FALSE(streams(depth, columns, [](Batch<float>& b) { b.all.c_stride += 1; }));
  }
  CHECK_FALSE(streams(Tile::depth + 1, columns));
}

TEST_CASE("ProductSchedule: blocks shrink until every thread has work") {
  const Counted<> large({4000}, 300, 1024), small({400}, 1, 40);
  const cpu::ProductSchedule<float> one(large.batch, true, 1), many(large.batch, true, 16),
      alone(small.batch, true, 16);
  CHECK(one.threads() == 1);
  CHECK(many.threads() == 16);
  CHECK(alone.threads() == 1);
  CHECK(one.columns() == cpu::tuning.product_columns);
  CHECK(many.row_blocks(large.batch[0]) * divide_up(1024, many.columns()) >= 16 * cpu::tuning.product_tasks_each);
  CHECK(cpu::ProductSchedule<float>(Counted<>({0, 0}, 5, 5).batch, true, 2).empty());
}

TEST_CASE("ProductSchedule: memory depends on sizes, suffices for any routing") {
  std::mt19937 random(5);
  const auto below = [&](Index n) { return static_cast<Index>(random() % static_cast<unsigned>(n)); };
  int shared = 0;
  for (int turn = 0; turn < 3000; ++turn) {
    const bool outer = turn % 2;
    const Index experts = 1 + below(40), slots = 1 + below(turn % 3 ? 200 : 9000), size = below(400),
                columns = 1 + below(1500);
    const int threads = 1 + static_cast<int>(below(8));
    const Index budget = turn % 5 == 0 ? 0 : 1 << 22, favoured = 1 + below(experts);
    std::vector<Index> counts(static_cast<std::size_t>(experts));
    for (Index s = 0; s < slots; ++s) ++counts[static_cast<std::size_t>(below(turn % 4 ? experts : favoured))];
    Counted<> c(counts, size, columns, outer), bound(std::vector<Index>(counts.size()), size, columns, outer);
    c.batch.most_slots = bound.batch.most_slots = slots;
    c.batch.all.b.lines_are_rows = bound.batch.all.b.lines_are_rows = turn % 7 < 3;
    const cpu::ProductMemory<float> memory(c.batch, threads, budget), of_sizes(bound.batch, threads, budget);
    CHECK(memory.items == of_sizes.items);
    CHECK(memory.packed == of_sizes.packed);
    CHECK(memory.a == of_sizes.a);
    CHECK(memory.sums == of_sizes.sums);
    CHECK(memory.panels == of_sizes.panels);

    const cpu::ProductSchedule<float> schedule(c.batch, true, threads);
    const Index width = std::min(schedule.columns(), cpu::PackedMatrix<float>::padded(columns));
    CHECK(memory.items >= experts * divide_up(columns, width));
    for (Index e = 0; e < experts; ++e) {
      const cpu::Problem<float> p = c.batch[e];
      if (p.rows == 0) continue;
      const Index rows = cpu::RowBlock::all<float>(p.rows).block(0, schedule.row_blocks(p)).count,
                  stride = cpu::Tile<float>::stride;
      CHECK(memory.a >= rows * stride);
      CHECK(memory.sums >=
            rows * (p.depth > cpu::Tile<float>::depth ? width : std::min(width, cpu::Tile<float>::depth)));
      const Index block = cpu::Tile<float>::depth;
      CHECK(memory.panels >= block * cpu::Tile<float>::columns);
      if (cpu::ProductSchedule<float>::packs(c.batch))
        CHECK(memory.panels >= cpu::PackedMatrix<float>::size(std::min(p.depth, block), std::min(columns, block)));
      else
        CHECK(memory.packed == 0);
      if (schedule.path(p) != WeightPath::by_call) continue;
      CHECK(memory.packed >= cpu::PackedMatrix<float>::size(std::min(p.depth, memory.chunk), std::min(width, columns)));
      ++shared;
    }
  }
  CHECK(shared > 500);
}

TEST_CASE_TEMPLATE("ProductSchedule: memory holds packed operands of few-slot gradients", P, float, Bfloat16) {
  std::vector<Index> counts;
  for (Index e = 0; e < 64; ++e) counts.push_back(1 + e % 40);
  Counted<P> c(counts, 200, 70, true);
  const Index rows[] = {0};
  c.batch.all.b.rows = rows;  // gathered: each task would pack B if the tasks shared no packed copy
  const cpu::ProductSchedule<P> schedule(c.batch, true, 4);
  Index packed = 0;
  for (Index e = 0; e < c.batch.experts; ++e)
    if (schedule.path(c.batch[e]) == WeightPath::by_call) packed += cpu::PackedMatrix<P>::size(c.batch[e].depth, 70);
  CHECK(packed > 0);
  CHECK(packed <= cpu::ProductMemory<P>(c.batch, 4, Index(1) << 22).packed);
}
