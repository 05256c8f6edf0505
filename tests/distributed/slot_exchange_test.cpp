#include "gatefold/distributed/slot_exchange.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <random>
#include <set>
#include <vector>

#include "gatefold/gatefold.hpp"

using namespace gatefold;

namespace {

/// Returns random slots of one shard: for each expert the rows that it reads. Some experts read none.
std::vector<std::vector<Index>> random_slots(Index shard, Index experts, Index rows, unsigned seed) {
  std::mt19937 generator(seed * 100 + static_cast<unsigned>(shard));
  std::vector<std::vector<Index>> slots(static_cast<std::size_t>(experts));
  for (auto& of : slots)
    for (Index r = 0; r < rows; ++r)
      if (generator() % 3 == 0) of.push_back(r);
  return slots;
}
/// Returns a placement: even and in order, all on one shard, or anywhere.
dist::Placement placement_of(Index experts, Index shards, unsigned seed) {
  auto placement = dist::Placement::even(experts, shards);
  std::mt19937 generator(seed);
  for (Index& j : placement.shard_of) {
    if (seed % 3 == 1) j = static_cast<Index>(generator()) % shards;
    if (seed % 3 == 2) j = static_cast<Index>(seed) % shards;
  }
  return placement;
}
double value_of(Index shard, Index row, Index column) { return static_cast<double>(shard * 10000 + row * 10 + column); }

}  // namespace

TEST_CASE("SlotExchange: rows arrive by expert and shard, slots return") {
  constexpr Index width = 3;
  for (unsigned seed = 0; seed < 12; ++seed)
    for (Index shards : {1, 2, 3, 5})
      for (Index experts : {1, 4, 7}) {
        const auto rows_of = [&](Index shard) { return (shard * 5 + static_cast<Index>(seed)) % 9; };
        const auto placement = placement_of(experts, shards, seed);
        const Index chunks = 1 + static_cast<Index>(seed) % 4;
        std::atomic<int> wrong = 0;
        dist::Alone world;
        dist::run(world, shards, [&](auto& shard) {
          Cpu::Context ctx(1);
          const Index me = shard.index(), rows = rows_of(me);
          const auto mine = random_slots(me, experts, rows, seed);
          std::vector<Index> offsets{0}, row;
          for (const auto& of : mine) {
            row.insert(row.end(), of.begin(), of.end());
            offsets.push_back(static_cast<Index>(row.size()));
          }
          const Index own = static_cast<Index>(row.size());
          // As in a plan with dropped picks, there are more slots than used slots.
          row.resize(row.size() + 2, -1);
          Tensor<double, 2, Cpu> x(rows, width), of_slots(own + 2, width), back(own + 2, width);
          for (Index r = 0; r < rows; ++r)
            for (Index k = 0; k < width; ++k) x(r, k) = value_of(me, r, k);
          for (Index s = 0; s < own; ++s)
            for (Index k = 0; k < width; ++k) of_slots(s, k) = value_of(me, 500 + s, k);

          dist::SlotExchange<double, Cpu> slots;
          slots.begin(shard, ctx, Groups<Cpu>{offsets, row, own + 2}, rows, placement, chunks);
          const Groups<Cpu> here = slots.groups();
          const std::vector<Index> experts_here = placement.experts_of(me);
          constexpr double unwritten = -7;
          auto arrived = constant_tensor<double>(ctx, unwritten, slots.rows(), width),
               slots_here = constant_tensor<double>(ctx, unwritten, here.slots, width);
          // When a chunk has arrived, all rows that its experts read must be there.
          Index chunk_end = 0;
          for (Index c = 0; c < chunks; ++c) {
            slots.bring_rows(shard, ctx, x, arrived, false, c);
            slots.bring_slots(shard, ctx, of_slots, slots_here, false, c);
            const dist::Range of_chunk = slots.slots_of(c);
            const Groups<Cpu> group = slots.groups(c);
            if (of_chunk.first != chunk_end || group.slots != of_chunk.count) ++wrong;
            chunk_end += of_chunk.count;
            for (std::size_t i = 0; i < experts_here.size(); ++i) {
              const auto in_chunk = dist::Range::of(slots.experts(), c, chunks).has(static_cast<Index>(i));
              if (group.offsets(i + 1) - group.offsets(i) != (in_chunk ? here.offsets(i + 1) - here.offsets(i) : 0))
                ++wrong;
            }
            for (Index s = 0; s < group.slots; ++s) {
              if (group.row(s) != here.row(of_chunk.first + s)) ++wrong;
              if (arrived(group.row(s), 0) == unwritten || slots_here(of_chunk.first + s, 0) == unwritten) ++wrong;
            }
          }
          if (chunk_end != here.slots) ++wrong;

          Index s = 0, needed = 0;
          std::vector<Index> number(static_cast<std::size_t>(shards), 0);
          for (std::size_t i = 0; i < experts_here.size(); ++i) {
            const Index e = experts_here[i];
            if (here.offsets(i) != s) ++wrong;
            for (Index j = 0; j < shards; ++j) {
              const auto theirs = random_slots(j, experts, rows_of(j), seed);
              Index before = 0;
              for (Index f = 0; f < e; ++f) before += static_cast<Index>(theirs[static_cast<std::size_t>(f)].size());
              for (Index r : theirs[static_cast<std::size_t>(e)]) {
                for (Index k = 0; k < width; ++k) {
                  if (arrived(here.row(s), k) != value_of(j, r, k)) ++wrong;
                  if (slots_here(s, k) != value_of(j, 500 + before, k)) ++wrong;
                }
                ++s, ++before;
              }
            }
          }
          if (here.offsets(experts_here.size()) != s || here.slots != s) ++wrong;
          for (Index j = 0; j < shards; ++j) {
            const auto theirs = random_slots(j, experts, rows_of(j), seed);
            std::set<Index> different;
            for (const Index e : experts_here)
              different.insert(theirs[static_cast<std::size_t>(e)].begin(), theirs[static_cast<std::size_t>(e)].end());
            needed += static_cast<Index>(different.size());
          }
          if (slots.rows() != needed) ++wrong;

          for (Index c = 0; c < chunks; ++c) slots.return_slots(shard, ctx, slots_here, back, false, c);
          for (Index i = 0; i < own; ++i)
            for (Index k = 0; k < width; ++k)
              if (back(i, k) != of_slots(i, k)) ++wrong;
        });
        CAPTURE(seed);
        CAPTURE(shards);
        CAPTURE(experts);
        CHECK(wrong == 0);
      }
}

TEST_CASE("SlotExchange: slots of copied experts keep their global numbers") {
  constexpr Index shards = 3, experts = 4;
  const dist::Placement placement{{2, 0, 1, 1}, {{0, 0}, {1, 1}, {1, 2}, {3, 0}}};
  const std::vector<std::vector<Index>> holders{{0, 2}, {0, 1, 2}, {1}, {0, 1}};
  const auto rows_of = [](Index shard) { return shard == 1 ? Index(0) : 5 + shard; };
  for (const bool of_items : {true, false})  // slots read rows of items, or their own rows
    for (unsigned seed = 0; seed < 8; ++seed) {
      // The slots of all shards in the order of experts and then shards, with shard, row and number.
      struct Slot {
        Index shard, row, number;
      };
      std::vector<std::vector<Slot>> all(experts);
      Index first_row = 0, number = 0;
      for (Index j = 0; j < shards; ++j) {
        const auto theirs = random_slots(j, experts, rows_of(j), seed);
        Index own = 0;
        for (Index e = 0; e < experts; ++e)
          for (const Index r : theirs[static_cast<std::size_t>(e)]) {
            const Index row = of_items ? r : own++;
            all[static_cast<std::size_t>(e)].push_back({j, row, (first_row + r) * experts + e});
          }
        first_row += rows_of(j);
      }
      for (Index e = 0; e < experts && !of_items; ++e)
        for (Slot& slot : all[static_cast<std::size_t>(e)]) slot.number = number++ * experts + e;
      std::atomic<int> wrong = 0;
      dist::Alone world;
      dist::run(world, shards, [&](auto& shard) {
        Cpu::Context ctx(1);
        const Index me = shard.index();
        std::vector<Index> offsets{0}, row;
        for (const auto& of : random_slots(me, experts, rows_of(me), seed)) {
          row.insert(row.end(), of.begin(), of.end());
          offsets.push_back(static_cast<Index>(row.size()));
        }
        const auto own = static_cast<Index>(row.size()), rows = of_items ? rows_of(me) : own;
        Groups<Cpu> groups{offsets, row, own};
        if (!of_items) groups.rows = {};
        Tensor<double, 2, Cpu> x(rows, 1), back(own, 1);
        for (Index r = 0; r < rows; ++r) x(r, 0) = value_of(me, r, 0);
        dist::SlotExchange<double, Cpu> slots;
        slots.begin(shard, ctx, groups, rows, placement);
        Index first = 0;
        for (Index j = 0; j < me; ++j) first += rows_of(j);
        slots.number(shard, ctx, groups, of_items, first, placement);
        const Groups<Cpu> here = slots.groups();
        Tensor<double, 2, Cpu> arrived(slots.rows(), 1), slots_here(here.slots, 1);
        slots.bring_rows(shard, ctx, x, arrived, false);
        Index s = 0;
        for (Index e = 0; e < experts; ++e) {
          const auto& on = holders[static_cast<std::size_t>(e)];
          const auto& of = all[static_cast<std::size_t>(e)];
          const auto n = static_cast<Index>(of.size()), c = static_cast<Index>(on.size());
          for (Index i = 0; i < c; ++i)
            for (Index k = i * n / c; k < (i + 1) * n / c && on[static_cast<std::size_t>(i)] == me; ++k, ++s) {
              const Slot& slot = of[static_cast<std::size_t>(k)];
              wrong += arrived(here.row(s), 0) != value_of(slot.shard, slot.row, 0);
              wrong += here.numbers(s) != slot.number;
              slots_here(s, 0) = value_of(slot.shard, slot.row, static_cast<Index>(e));
            }
        }
        wrong += s != here.slots;
        slots.return_slots(shard, ctx, slots_here, back, false);
        for (Index e = 0; e < experts; ++e)
          for (Index k = offsets[static_cast<std::size_t>(e)]; k < offsets[static_cast<std::size_t>(e + 1)]; ++k)
            wrong += back(k, 0) != value_of(me, groups.row(k), e);
      });
      CAPTURE(seed);
      CAPTURE(of_items);
      CHECK(wrong == 0);
    }
}
