#include "gatefold/backend/cpu/block_product.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "support/guarded.hpp"
#include "support/naive.hpp"
#include "support/slow_build.hpp"

using namespace gatefold;
using cpu::BlockProduct;
using cpu::RowBlock;
using cpu::Sums;
using cpu::Tile;
using cpu::WeightBlock;
using cpu::WeightPath;

namespace {

/// A task of several blocks of weights, one after the other, by every way in which weights come.
template <class T>
struct Task {
  static constexpr Index width = Tile<T>::columns;
  Index rows, columns;
  std::vector<Index> depths;
  std::vector<T> a, b;

  Task(Index r, Index c, std::vector<Index> d) : rows(r), columns(c), depths(std::move(d)) {
    a = naive::random_vector<T>(rows * Tile<T>::stride, 1);
    b = naive::random_vector<T>(static_cast<Index>(depths.size()) * Tile<T>::depth * columns, 2);
  }
  /// sums [blocks][rows, columns], of prepacked, rounded or plain weights
  std::vector<T> run(WeightPath path, bool add, bool in_rows, bool round = false) const {
    const Index stride = divide_up(columns, width) * width, size = rows * stride;
    std::vector<T> result(static_cast<std::size_t>(size) * depths.size(), T(0.5)),
        panels(static_cast<std::size_t>(BlockProduct<T>::memory(Tile<T>::depth, columns)));
    std::vector<std::vector<T>> packed;
    std::vector<std::vector<Bfloat16>> half(depths.size());
    std::vector<WeightBlock<T>> blocks;
    for (std::size_t i = 0; i < depths.size(); ++i) {
      WeightBlock<T> block{
          {b.data() + static_cast<Index>(i) * Tile<T>::depth * columns, columns, false}, {}, 0, depths[i], 0, columns};
      packed.emplace_back(static_cast<std::size_t>(depths[i] * stride) + 1);
      if (path == WeightPath::prepacked || round) {
        block.pack(packed[i].data());
        for (const T v : packed[i]) half[i].push_back(Bfloat16::from(static_cast<float>(v)));
        if (path == WeightPath::prepacked)
          block.packed =
              round ? cpu::PackedMatrix<T>{nullptr, half[i].data()} : cpu::PackedMatrix<T>{packed[i].data(), nullptr};
      }
      blocks.push_back(block);
    }
    BlockProduct<T> product(path, panels.data());
    const RowBlock all = RowBlock::all<T>(rows);
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      T* const to = result.data() + static_cast<Index>(i) * size;
      product.run(all, a.data(), blocks[i], i + 1 < blocks.size() ? &blocks[i + 1] : nullptr,
                  add ? cpu::Into::add : cpu::Into::store,
                  in_rows ? Sums<T>::rows(to, stride) : Sums<T>::panels(to, rows));
    }
    // Element by element, whichever way they lie; what is past the columns is of no account.
    std::vector<T> elements;
    for (std::size_t i = 0; i < blocks.size(); ++i)
      for (Index r = 0; r < rows; ++r)
        for (Index x = 0; x < columns; ++x)
          elements.push_back(result[i * static_cast<std::size_t>(size) +
                                    static_cast<std::size_t>(
                                        in_rows ? r * stride + x : x / width * rows * width + r * width + x % width)]);
    return elements;
  }
};

}  // namespace

TEST_CASE_TEMPLATE("whichever way weights come, skinny or not, into panels or rows: the same bits", T, float, double) {
  constexpr Index width = Tile<T>::columns, tile = Tile<T>::rows;
  for (const Index rows : {Index(1), Index(8), Index(9), tile + 1, 5 * tile, 7 * tile})
    for (const Index columns : {Index(1), width, 3 * width + 1, Tile<T>::depth})
      // Groups so shallow that there is no time to copy the next panel, one without any depth, and deep ones.
      for (const auto& depths : {std::vector<Index>{256, 256}, {256, 3, 256, 129}, {0, 40}, {7}})
        for (const bool add : {false, true}) {
          if (support::slow_build && (rows == 8 || rows == tile + 1 || columns == width)) continue;
          const Task<T> task(rows, columns, depths);
          const std::vector<T> expected = task.run(WeightPath::by_task, add, false);
          CHECK(task.run(WeightPath::prepacked, add, false) == expected);
          if (rows > 1) CHECK(task.run(WeightPath::on_the_way, add, false) == expected);
          if (rows > cpu::tuning.skinny_panel_rows) {
            CHECK(task.run(WeightPath::by_task, add, true) == expected);
            CHECK(task.run(WeightPath::prepacked, add, true) == expected);
          }
          // The chains (1) of tile.hpp themselves.
          std::size_t i = 0;
          for (std::size_t d = 0; d < depths.size(); ++d)
            for (Index r = 0; r < rows; ++r)
              for (Index x = 0; x < columns; ++x, ++i) {
                if ((r * 7 + x) % 13 != 0) continue;
                using V = cpu::Register<T>;
                V s(T(0));
                for (Index k = 0; k < depths[d]; ++k)
                  s = madd(V(task.a[std::size_t(r * Tile<T>::stride + k)]),
                           V(task.b[std::size_t((Index(d) * Tile<T>::depth + k) * columns + x)]), s);
                T lanes[V::size];
                s.store(lanes);
                CHECK(expected[i] == (add ? T(0.5) + lanes[0] : lanes[0]));
              }
        }
}

#if defined(__linux__)
TEST_CASE_TEMPLATE("packed on the way, a narrow last panel is not read past the end of its weights", T, float, double) {
  constexpr Index width = Tile<T>::columns, columns = width + 3, depth = Tile<T>::depth, rows = 7 * Tile<T>::rows;
  Task<T> task(rows, columns, {depth});
  const support::Guarded<T> b(task.b);
  const WeightBlock<T> block{{b.data(), columns, false}, {}, 0, depth, 0, columns};
  std::vector<T> panels(static_cast<std::size_t>(BlockProduct<T>::memory(depth, columns))),
      sums(static_cast<std::size_t>(rows * 2 * width));
  BlockProduct<T>(WeightPath::on_the_way, panels.data())
      .run(RowBlock::all<T>(rows), task.a.data(), block, nullptr, cpu::Into::store, Sums<T>::panels(sums.data(), rows));
  const std::vector<T> expected = task.run(WeightPath::by_task, false, false);
  for (Index r = 0; r < rows; ++r)
    for (Index x = 0; x < columns; ++x)
      CHECK(sums[std::size_t(x / width * rows * width + r * width + x % width)] ==
            expected[std::size_t(r * columns + x)]);
}
#endif

TEST_CASE("rounded weights: skinny blocks and others have the bits of the rounded numbers") {
  for (const Index rows : {3, 40}) {
    Task<float> task(rows, 70, {256, 30});
    const auto rounded = task.run(WeightPath::prepacked, false, false, true);
    for (float& v : task.b) v = float(Bfloat16::from(v));
    CHECK(task.run(WeightPath::by_task, false, false) == rounded);
  }
}
