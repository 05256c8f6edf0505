#pragma once

#include <cstdint>
#include <vector>

#include "gatefold/core/philox.hpp"
#include "gatefold/core/types.hpp"

/// Tables of keys, and the plan that the primitive group_table must make from them.
namespace gatefold::test {

struct KeyTable {
  Index rows, columns, groups;
  std::vector<Index> keys;
};

struct TablePlan {
  std::vector<Index> offsets, order, rows, row_offsets, row_slots;

  TablePlan(const KeyTable& t, Index value)
      : offsets(static_cast<std::size_t>(t.groups + 1), value),
        order(t.keys.size(), value),
        rows(t.keys.size(), value),
        row_offsets(static_cast<std::size_t>(t.rows + 1), value),
        row_slots(t.keys.size(), value) {}
  bool operator==(const TablePlan&) const = default;
};

/// Returns the plan by its definition: slots sorted by key, and by position within a key; then, for each row, its
/// slots.
inline TablePlan defined(const KeyTable& t) {
  TablePlan p(t, 0);
  std::vector<std::vector<Index>> positions(static_cast<std::size_t>(t.groups)),
      slots(static_cast<std::size_t>(t.rows));
  for (std::size_t i = 0; i < t.keys.size(); ++i)
    positions[static_cast<std::size_t>(t.keys[i])].push_back(static_cast<Index>(i));
  Index slot = 0;
  for (std::size_t g = 0; g < positions.size(); ++g) {
    p.offsets[g] = slot;
    for (const Index i : positions[g]) {
      const Index row = i / t.columns;
      p.order[static_cast<std::size_t>(slot)] = i;
      p.rows[static_cast<std::size_t>(slot)] = row;
      slots[static_cast<std::size_t>(row)].push_back(slot++);
    }
  }
  p.offsets.back() = slot;
  Index at = 0;
  for (std::size_t n = 0; n < slots.size(); ++n) {
    p.row_offsets[n] = at;
    for (const Index s : slots[n]) p.row_slots[static_cast<std::size_t>(at++)] = s;
  }
  p.row_offsets.back() = at;
  return p;
}

/// Returns a table of keys.
/// @param kind  0: random keys; 1: keys that differ within a row, if there are enough groups; 2: each key is groups − 1
inline KeyTable table(Index rows, Index columns, Index groups, int kind = 0) {
  KeyTable t{rows, columns, groups, {}};
  for (Index n = 0; n < rows; ++n)
    for (Index j = 0; j < columns; ++j) {
      const auto random = static_cast<Index>(mix64(static_cast<std::uint64_t>(kind == 0 ? n * columns + j : n)) >> 1);
      t.keys.push_back(kind == 2 ? groups - 1 : (random % groups + (kind == 1 ? groups - 1 - j % groups : 0)) % groups);
    }
  return t;
}

/// Returns tables with few and with many groups. Some have no row or one row; others have about as many keys as a tile
/// of the CUDA backend (2048 keys), or more.
inline std::vector<KeyTable> tables() {
  std::vector<KeyTable> all{table(0, 2, 5), table(1, 1, 1), table(4, 4, 4, 1), table(9, 3, 257), table(1, 300, 300, 1)};
  for (const Index rows : {31, 32, 33, 1023, 1024, 1025, 3000}) all.push_back(table(rows, 2, 8, 1));
  for (const int kind : {0, 2}) all.push_back(table(2500, 1, 64, kind));
  all.push_back(table(900, 5, 33, 1));
  all.push_back(table(20, 257, 257, 1));
  all.push_back(table(3, 2048, 2, 0));
  all.push_back(table(2, 2049, 3, 0));
  for (const Index groups : {1, 255, 256, 1023, 1024, 1025}) all.push_back(table(1200, 2, groups, 0));
  return all;
}

}  // namespace gatefold::test
