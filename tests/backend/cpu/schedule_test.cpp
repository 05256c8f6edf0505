#include "gatefold/backend/cpu/schedule.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <vector>

#include "gatefold/backend/cpu/thread_pool.hpp"

using namespace gatefold;
using cpu::RowBlock;

TEST_CASE_TEMPLATE("RowBlock: blocks cover all rows with tiles of similar size", P, float, Bfloat16) {
  for (Index rows = 1; rows < 300; ++rows) {
    RowBlock all = RowBlock::all<P>(rows);
    all.first = 7;
    for (const Index n : {Index(1), Index(2), Index(3), all.tiles})
      if (n <= all.tiles) {
        Index next = all.first, tiles = 0;
        for (Index i = 0; i < n; ++i) {
          const RowBlock block = all.block(i, n);
          CHECK(block.first == next);
          for (Index t = 0; t < block.tiles; ++t) {
            CHECK(block.size(t) >= 1);
            CHECK(block.size(t) <= cpu::Tile<P>::rows);
            next += block.size(t);
            CHECK((next == all.first + rows || (next - all.first) % cpu::Tile<P>::unit == 0));
          }
          tiles += block.tiles;
        }
        CHECK(next == all.first + rows);
        CHECK(tiles == all.tiles);
      }
  }
}

namespace {

struct Item {
  int name;
  Index parts;
  Index begin = 0;
};

}  // namespace

TEST_CASE("Wave: calls f once for each part of each item") {
  for (const int threads : {1, 3}) {
    cpu::Workers workers(threads);
    std::vector<Item> memory(5);
    cpu::Wave<Item> wave(memory.data(), workers, threads);
    const auto walk = [&](std::initializer_list<Index> parts) {
      int name = 0;
      for (const Index n : parts) wave.add({name++, n});
      std::vector<std::vector<int>> done(5, std::vector<int>(40));
      std::atomic<int> wrong{0};
      wave.each_part([](const Item& item) { return item.parts; },
                     [&](const Item& item, Index part, int worker) {
                       ++done[std::size_t(item.name)][std::size_t(part)];
                       if (worker >= threads) ++wrong;
                     });
      CHECK(wrong == 0);
      name = 0;
      for (const Index n : parts) {
        for (Index i = 0; i < 40; ++i) CHECK(done[std::size_t(name)][std::size_t(i)] == (i < n ? 1 : 0));
        ++name;
      }
      wave.clear();
    };
    walk({0, 3, 0, 0, 40});
    walk({7});
    walk({5, 0});
    walk({});
    walk({0, 0});
  }
}
