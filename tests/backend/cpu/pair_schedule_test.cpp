#include "gatefold/backend/cpu/pair_schedule.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

using namespace gatefold;
using cpu::WeightPath;

namespace {

/// A pair of products with sizes and counts of rows, but without data.
template <class P = float>
struct Counted {
  std::vector<Index> offsets{0};
  cpu::PairBatch<P> batch;

  Counted(const std::vector<Index>& counts, Index depth, Index hidden, Index columns) {
    for (const Index n : counts) offsets.push_back(offsets.back() + n);
    batch = {
        .ups = 1, .depth = depth, .hidden = hidden, .columns = columns, .experts = static_cast<Index>(counts.size())};
    batch.offsets = offsets.data();
  }
  Counted(const Counted&) = delete;
};

constexpr Index kRows = cpu::tuning.tile_rows;

}  // namespace

TEST_CASE("PairSchedule: the rows of one expert share no packed weights") {
  const Index block = cpu::PairSchedule<float>::largest_block(Counted<>({1}, 512, 512, 512).batch);
  REQUIRE(block >= 10);
  for (const Index rows :
       {Index(1), kRows, kRows + 1, 5 * kRows, block * kRows, block * kRows + 1, 4 * block * kRows}) {
    const Counted<> c({rows}, 512, 512, 512);
    CHECK(cpu::PairSchedule<float>(c.batch, 1).path(rows) == WeightPath::by_task);
    CHECK(cpu::PairMemory<float>(c.batch, 1, 1 << 20).packed == 0);
  }
}

TEST_CASE("PairSchedule: reads prepacked weights for any number of rows") {
  Counted<> c({3, 900}, 300, 300, 300);
  const float packed = 0;
  c.batch.packed_down = {&packed, nullptr};
  const cpu::PairSchedule<float> schedule(c.batch, 2);
  for (const Index rows : {1, 3, 40, 900}) CHECK(schedule.path(rows) == WeightPath::prepacked);
}

TEST_CASE("PairSchedule: only on AMX, two tiles share packed weights") {
  using P = Bfloat16;
  constexpr Index rows = cpu::Tile<P>::rows + 1;
  const Counted<P> c({rows, 1, 1, 1, 1, 1}, 512, 512, 512);
  CHECK((cpu::PairSchedule<P>(c.batch, 2).path(rows) == WeightPath::by_call) == cpu::on_amx<P>);
  CHECK(cpu::PairMemory<P>(c.batch, 2, 0).packed >= (cpu::on_amx<P> ? c.batch.packed_size() : 0));
}

TEST_CASE("PairSchedule: memory of chunk tasks holds all expert rows") {
  const Index rows = cpu::PairSchedule<float>::most_skinny_rows, depth = 48 * cpu::Tile<float>::depth;
  const Counted<> c({rows}, depth, 8, 8);
  const cpu::PairSchedule<float> schedule(c.batch, 8);
  REQUIRE(schedule.largest_block(c.batch) * kRows < rows);
  REQUIRE(schedule.row_blocks(rows) == 0);
  const cpu::PairMemory<float> memory(c.batch, 8, 0);
  CHECK(memory.skinny_rows >= rows);
  CHECK(memory.a >= rows * 48 * cpu::Tile<float>::stride);
  CHECK(memory.hidden >= rows * cpu::Tile<float>::stride);
  CHECK(memory.first >= rows * cpu::Tile<float>::depth);
  CHECK(memory.sums >= rows * c.batch.padded_columns());
}

TEST_CASE_TEMPLATE("PairMemory: depends on sizes only and suffices for any routing", P, float, Bfloat16) {
  std::mt19937 random(5);
  const auto below = [&](Index n) { return static_cast<Index>(random() % static_cast<unsigned>(n)); };
  int by_call = 0, skinny = 0;
  for (int turn = 0; turn < 3000; ++turn) {
    const Index experts = 1 + below(40), slots = 1 + below(turn % 2 ? 200 : 4000);
    const Index depth = below(400), hidden = below(turn % 3 ? 700 : 2600), columns = 1 + below(400);
    const int threads = 1 + static_cast<int>(below(8));
    const Index budget = turn % 3 == 0 ? 0 : 1 << 22;
    std::vector<Index> counts(static_cast<std::size_t>(experts));
    const Index favoured = 1 + below(experts);
    for (Index s = 0; s < slots; ++s) ++counts[static_cast<std::size_t>(below(turn % 5 ? experts : favoured))];
    Counted<P> c(counts, depth, hidden, columns), bound({}, depth, hidden, columns);
    bound.batch.experts = experts;
    bound.batch.slots = slots;
    bound.offsets.assign(static_cast<std::size_t>(experts) + 1, 0);
    bound.batch.offsets = bound.offsets.data();
    const cpu::PairSchedule<P> schedule(c.batch, threads);
    const cpu::PairMemory<P> memory(c.batch, threads, budget), of_sizes(bound.batch, threads, budget);

    CHECK(memory.packed == of_sizes.packed);
    CHECK(memory.skinny_rows == of_sizes.skinny_rows);
    CHECK(memory.threads == of_sizes.threads);
    CHECK(memory.of_thread(1) == of_sizes.of_thread(1));
    CHECK(schedule.threads() <= memory.threads);
    for (const Index rows : counts) {
      if (rows == 0) continue;
      const WeightPath path = schedule.path(rows);
      const Index blocks = schedule.row_blocks(rows);
      if (blocks == 0) {
        CHECK(rows <= memory.skinny_rows);
        ++skinny;
      }
      const Index tiles = divide_up(rows, Index(cpu::Tile<P>::rows)),
                  of_block = blocks == 0 ? tiles : divide_up(tiles, blocks);
      const Index most = std::min(of_block * cpu::Tile<P>::rows, rows), of_row = cpu::Tile<P>::stride;
      CHECK(memory.a >= most * c.batch.blocks() * of_row);
      CHECK(memory.hidden >= most * cpu::Tile<cpu::SumOf<P>>::stride);
      CHECK(memory.first >= most * cpu::Tile<P>::depth);
      CHECK(memory.sums >= most * c.batch.padded_columns());
      using cpu::BlockProduct;
      CHECK(memory.panels >= BlockProduct<P>::memory(cpu::on_amx<P>, depth, hidden));
      CHECK(memory.panels >= BlockProduct<P>::memory(cpu::on_amx<P>, hidden, columns));
      if (path == WeightPath::by_call) {
        CHECK(memory.packed >= c.batch.packed_size());
        ++by_call;
      }
    }
  }
  // The paths that need memory occurred.
  CHECK((cpu::on_amx<P> ? by_call > 100 : by_call == 0));
  CHECK(skinny > 100);
}
