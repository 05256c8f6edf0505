#include "gatefold/backend/cpu/tile.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "gatefold/backend/cpu/skinny.hpp"
#include "support/naive.hpp"

using namespace gatefold;
using cpu::Operand;
using cpu::Tile;

TEST_CASE_TEMPLATE("eq. (1): tiles of every height and the skinny sum are the same chain", T, float, double) {
  constexpr Index width = Tile<T>::columns, stride = Tile<T>::stride;
  for (const Index depth : {0, 1, 2, 5, 64, 255, 256}) {
    const auto a = naive::random_vector<T>(Tile<T>::rows * stride, 2),
               b = naive::random_vector<T>((depth + 1) * width, 3);
    for (Index rows = 1; rows <= Tile<T>::rows; ++rows) {
      std::vector<T> tile(static_cast<std::size_t>(rows * width), T(1)), few = tile;
      cpu::tile_sum(rows, width, depth, a.data(), b.data(), tile.data(), cpu::Tile<T>::columns, false,
                    cpu::Prefetch::nothing(b.data()));
      cpu::skinny_sum(rows, depth, a.data(), b.data(), width, width, few.data(), width);
      CHECK(std::memcmp(tile.data(), few.data(), tile.size() * sizeof(T)) == 0);
      double worst = 0;
      for (Index i = 0; i < rows; ++i)
        for (Index j = 0; j < width; ++j) {
          double sum = 0;
          for (Index k = 0; k < depth; ++k)
            sum += static_cast<double>(a[static_cast<std::size_t>(i * stride + k)]) *
                   static_cast<double>(b[static_cast<std::size_t>(k * width + j)]);
          worst = std::max(worst, std::abs(sum - static_cast<double>(tile[static_cast<std::size_t>(i * width + j)])));
        }
      CHECK(worst <= 256 * std::numeric_limits<T>::epsilon());
      std::vector<T> twice = tile;
      cpu::tile_sum(rows, width, depth, a.data(), b.data(), twice.data(), cpu::Tile<T>::columns, true,
                    cpu::Prefetch::nothing(b.data()));
      int wrong = 0;
      for (std::size_t i = 0; i < tile.size(); ++i) wrong += twice[i] != tile[i] + tile[i];
      CHECK(wrong == 0);
      for (const Index columns : {Index(1), Index(Tile<T>::size), Index(Tile<T>::size + 1)}) {
        std::vector<T> narrow(tile.size(), T(1));
        cpu::tile_sum(rows, columns, depth, a.data(), b.data(), narrow.data(), cpu::Tile<T>::columns, false,
                      cpu::Prefetch::nothing(b.data()));
        for (Index i = 0; i < rows; ++i)
          CHECK(std::memcmp(&narrow[static_cast<std::size_t>(i * width)], &tile[static_cast<std::size_t>(i * width)],
                            static_cast<std::size_t>(columns) * sizeof(T)) == 0);
      }
    }
  }
}

TEST_CASE_TEMPLATE("a tile that copies rows of another panel on the way: the same sums, and what pack_panels makes", T,
                   float, double) {
  constexpr Index width = Tile<T>::columns, stride = width + 3, deep = 90;
  const auto b = naive::random_vector<T>(deep * stride, 4);
  const auto all = naive::random_vector<T>(256 * width, 3),
             a = naive::random_vector<T>(Tile<T>::rows * Tile<T>::stride, 2);
  std::vector<T> expected(static_cast<std::size_t>(deep * width)), packed = expected;
  cpu::pack_panels(Operand<T>{b.data(), stride, false}, 2, width, 0, deep, expected.data());
  for (const Index depth : {60, 61, 256})
    for (const Index rows : {Index(1), Index(2), Tile<T>::rows - Index(1), Index(Tile<T>::rows)})
      for (const Index columns : {Index(Tile<T>::size), width})
        for (const bool add : {false, true}) {
          std::vector<T> plain(static_cast<std::size_t>(rows * width), T(1));
          cpu::tile_sum(rows, columns, depth, a.data(), all.data(), plain.data(), width, add,
                        cpu::Prefetch::nothing(all.data()));
          std::fill(packed.begin(), packed.end(), T(9));
          Index done = 0;
          for (const Index count : {Index(1), Index(0), depth / 2, depth / 2, depth / 2, deep}) {
            const Index part = std::min({count, depth / 2, deep - done});
            std::vector<T> sums(plain.size(), T(1));
            cpu::tile_sum(rows, columns, depth, a.data(), all.data(), sums.data(), width, add,
                          cpu::Prefetch::nothing(all.data()),
                          cpu::PanelCopy<T>{b.data() + done * stride + 2, stride, packed.data() + done * width, part});
            done += part;
            CHECK(sums == plain);
            CHECK(std::equal(packed.begin(), packed.begin() + done * width, expected.begin()));
            CHECK(std::all_of(packed.begin() + done * width, packed.end(), [](T v) { return v == T(9); }));
          }
          CHECK(done == deep);
        }
}
