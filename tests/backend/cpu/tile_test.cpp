#include "gatefold/backend/cpu/tile.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "../../support/naive.hpp"

using namespace gatefold;
using cpu::Operand;
using cpu::Tile;

TEST_CASE_TEMPLATE("packing reads both layouts, gathered or not", T, float, double) {
  constexpr Index width = Tile<T>::columns, stride = Tile<T>::stride;
  const Index rows = 45, columns = 71, depth = 37;
  const auto data = naive::random_vector<T>(rows * columns, 1);
  std::vector<Index> gather;
  for (Index i = 0; i < rows; ++i) gather.push_back((i * 17 + 5) % rows);
  for (const bool lines_are_rows : {true, false})
    for (const Index* list : {static_cast<const Index*>(nullptr), static_cast<const Index*>(gather.data())})
      for (const Index lines : {1, 2, 7, 13, 39}) {
        const Index line = 5, k = 3, deep = std::min(depth, (lines_are_rows ? columns : rows) - k);
        const Operand<T> x{data.data(), columns, lines_are_rows, list};
        const auto element = [&](Index l, Index d) {
          const Index r = lines_are_rows ? l : d, c = lines_are_rows ? d : l;
          return data[static_cast<std::size_t>((list ? list[r] : r) * columns + c)];
        };
        std::vector<T> a(static_cast<std::size_t>(lines * stride), T(9)),
            b(static_cast<std::size_t>((lines + width) * deep), T(9));
        cpu::pack_rows(x, line, lines, k, deep, a.data());
        cpu::pack_panels(x, line, lines, k, deep, b.data());
        int wrong = 0;
        for (Index l = 0; l < lines; ++l)
          for (Index d = 0; d < stride; ++d)
            wrong += a[static_cast<std::size_t>(l * stride + d)] != (d < deep ? element(line + l, k + d) : T(9));
        for (Index l = 0; l < (lines + width - 1) / width * width; ++l)
          for (Index d = 0; d < deep; ++d)
            wrong += b[static_cast<std::size_t>((l / width * deep + d) * width + l % width)] !=
                     (l < lines ? element(line + l, k + d) : T(0));
        CHECK(wrong == 0);
      }
}

TEST_CASE_TEMPLATE("eq. (1): tiles of every height and the few-rows sum are the same chain", T, float, double) {
  constexpr Index width = Tile<T>::columns, stride = Tile<T>::stride;
  for (const Index depth : {0, 1, 2, 5, 64, 255, 256}) {
    const auto a = naive::random_vector<T>(Tile<T>::rows * stride, 2),
               b = naive::random_vector<T>((depth + 1) * width, 3);
    for (Index rows = 1; rows <= Tile<T>::rows; ++rows) {
      std::vector<T> tile(static_cast<std::size_t>(rows * width), T(1)), few = tile;
      cpu::tile_sum(rows, width, depth, a.data(), b.data(), tile.data(), cpu::Tile<T>::columns, false, cpu::Ahead::nothing(b.data()));
      cpu::few_rows_sum(rows, depth, a.data(), b.data(), width, width, few.data(), width);
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
      cpu::tile_sum(rows, width, depth, a.data(), b.data(), twice.data(), cpu::Tile<T>::columns, true, cpu::Ahead::nothing(b.data()));
      int wrong = 0;
      for (std::size_t i = 0; i < tile.size(); ++i) wrong += twice[i] != tile[i] + tile[i];
      CHECK(wrong == 0);
      for (const Index columns : {Index(1), Index(Tile<T>::size), Index(Tile<T>::size + 1)}) {
        std::vector<T> narrow(tile.size(), T(1));
        cpu::tile_sum(rows, columns, depth, a.data(), b.data(), narrow.data(), cpu::Tile<T>::columns, false, cpu::Ahead::nothing(b.data()));
        for (Index i = 0; i < rows; ++i)
          CHECK(std::memcmp(&narrow[static_cast<std::size_t>(i * width)], &tile[static_cast<std::size_t>(i * width)],
                            static_cast<std::size_t>(columns) * sizeof(T)) == 0);
      }
    }
  }
}

TEST_CASE_TEMPLATE("the few-rows sum reads B's columns alone", T, float, double) {
  const Index columns = Tile<T>::columns + 3, depth = 9, rows = 5, stride = columns + Tile<T>::columns;
  const auto a = naive::random_vector<T>(rows * Tile<T>::stride, 4);
  const auto b = naive::random_vector<T>(depth * columns, 5);  // a sanitizer sees a step past the end
  std::vector<T> sums(static_cast<std::size_t>(rows * stride));
  cpu::few_rows_sum(rows, depth, a.data(), b.data(), columns, columns, sums.data(), stride);
  double worst = 0;
  for (Index i = 0; i < rows; ++i)
    for (Index j = 0; j < columns; ++j) {
      double sum = 0;
      for (Index k = 0; k < depth; ++k)
        sum += static_cast<double>(a[static_cast<std::size_t>(i * Tile<T>::stride + k)]) *
               static_cast<double>(b[static_cast<std::size_t>(k * columns + j)]);
      worst = std::max(worst, std::abs(sum - static_cast<double>(sums[static_cast<std::size_t>(i * stride + j)])));
    }
  CHECK(worst <= 16 * std::numeric_limits<T>::epsilon());
}

TEST_CASE("what is asked for ahead begins at the tile's part, in rows of memory at the row that holds it") {
  std::vector<float> data(4096);
  const char* begin = reinterpret_cast<const char*>(data.data());
  for (Index t = 0; t < 4; ++t) {
    const auto all = cpu::Ahead::part(data.data(), 4096, t, 4);
    CHECK(all.first.next == begin + t * 4096);
    // 10 rows of 2 lines and a bit, 512 bytes apart: 30 lines, of which part t begins with line 7 t, 15, 22.
    const auto rows = cpu::Ahead::rows(data.data(), 10, 136, 512, t, 4);
    CHECK(rows.first.next == begin + (t == 0 ? 0 : t == 1 ? 2 : t == 2 ? 5 : 7) * 512);
    CHECK(rows.first.run == 3);
    CHECK(rows.first.jump == 512 - 2 * 64);
    // 4 rows of 2 lines, 256 bytes apart, before those.
    const auto both = rows.after_rows(data.data() + 2048, 4, 128, 256);
    CHECK(both.first.next == begin + 2048 * sizeof(float));
    CHECK(both.first.run == 2);
    CHECK(both.first.jump == 256 - 64);
    CHECK(both.count == 8);
    CHECK(both.then.next == rows.first.next);
    CHECK(both.then.run == 3);
  }
}

TEST_CASE_TEMPLATE("a tile that packs rows of another panel on the way: the same sums, and what pack_panels makes", T, float, double) {
  constexpr Index width = Tile<T>::columns, stride = width + 3, deep = 90;
  const auto b = naive::random_vector<T>(deep * stride, 4);
  const auto all = naive::random_vector<T>(256 * width, 3), a = naive::random_vector<T>(Tile<T>::rows * Tile<T>::stride, 2);
  std::vector<T> expected(static_cast<std::size_t>(deep * width)), packed = expected;
  cpu::pack_panels(Operand<T>{b.data(), stride, false}, 2, width, 0, deep, expected.data());
  for (const Index depth : {60, 61, 256})
    for (const Index rows : {Index(1), Index(2), Tile<T>::rows - Index(1), Index(Tile<T>::rows)})
      for (const Index columns : {Index(Tile<T>::size), width})
        for (const bool add : {false, true}) {
          std::vector<T> plain(static_cast<std::size_t>(rows * width), T(1));
          cpu::tile_sum(rows, columns, depth, a.data(), all.data(), plain.data(), width, add, cpu::Ahead::nothing(all.data()));
          std::fill(packed.begin(), packed.end(), T(9));
          Index done = 0;
          for (const Index count : {Index(1), Index(0), depth / 2, depth / 2, depth / 2, deep}) {
            const Index part = std::min({count, depth / 2, deep - done});
            std::vector<T> sums(plain.size(), T(1));
            cpu::tile_sum(rows, columns, depth, a.data(), all.data(), sums.data(), width, add, cpu::Ahead::nothing(all.data()),
                          cpu::PackAhead<T>{b.data() + done * stride + 2, stride, packed.data() + done * width, part});
            done += part;
            CHECK(sums == plain);
            CHECK(std::equal(packed.begin(), packed.begin() + done * width, expected.begin()));
            CHECK(std::all_of(packed.begin() + done * width, packed.end(), [](T v) { return v == T(9); }));
          }
          CHECK(done == deep);
        }
}
