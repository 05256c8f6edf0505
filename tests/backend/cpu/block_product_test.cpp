#include "gatefold/backend/cpu/block_product.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <numeric>
#include <type_traits>
#include <vector>

#include "support/guarded.hpp"
#include "support/naive.hpp"
#include "support/products_of.hpp"
#include "support/slow_build.hpp"

using namespace gatefold;
using cpu::BlockProduct;
using cpu::Operand;
using cpu::RowBlock;
using cpu::Sums;
using cpu::Tile;
using cpu::WeightBlock;

namespace {

/// How often the kernel for weights rounded to half the size ran.
int half_tiles = 0;
template <class P>
constexpr cpu::HalfTile* counted_half_tile() {
  if constexpr (cpu::half_tile<P>() == nullptr)
    return nullptr;
  else
    return [](auto... arguments) {
      ++half_tiles;
      cpu::half_tile<P>()(arguments...);
    };
}

/// How weights are stored: in rows, in gathered rows, transposed, packed, or packed and rounded to half the size.
enum class Lie { plain, gathered, transposed, packed, rounded };

/// A task of several blocks of weights, one after the other.
template <class P>
struct Task {
  using T = cpu::SumOf<P>;
  static constexpr Index width = Tile<P>::columns, deepest = Tile<P>::depth;
  Index rows, columns;
  std::vector<Index> depths;
  std::vector<T> a, b;  // [rows, deepest], [blocks][deepest, columns]

  Task(Index r, Index c, std::vector<Index> d) : rows(r), columns(c), depths(std::move(d)) {
    a = naive::random_vector<T>(rows * deepest, 1);
    b = naive::random_vector<T>(static_cast<Index>(depths.size()) * deepest * columns, 2);
  }
  /// @param in_rows  write the sums into rows of a matrix, otherwise into panels
  /// @return sums [blocks][rows, columns]
  std::vector<T> run(Lie lie, bool add, bool in_rows) const {
    cpu::AmxTiles<P>::permit();
    const Index stride = divide_up(columns, width) * width, size = rows * stride, all = deepest * columns;
    std::vector<T> result(static_cast<std::size_t>(size) * depths.size(), T(0.5)),
        panels(static_cast<std::size_t>(BlockProduct<P>::memory(true, deepest, columns))), other = b;
    std::vector<Index> gather(static_cast<std::size_t>(deepest));
    std::iota(gather.rbegin(), gather.rend(), Index(0));
    std::vector<std::vector<T>> packed(depths.size()), of_rows(depths.size());
    std::vector<std::vector<Bfloat16>> half(depths.size());
    std::vector<WeightBlock<P>> blocks;
    for (std::size_t i = 0; i < depths.size(); ++i) {
      const T* const plain = b.data() + static_cast<Index>(i) * all;
      T* const to = other.data() + static_cast<Index>(i) * all;
      for (Index k = 0; k < deepest; ++k)
        for (Index x = 0; x < columns; ++x) {
          if (lie == Lie::gathered) to[gather[std::size_t(k)] * columns + x] = plain[k * columns + x];
          if (lie == Lie::transposed) to[x * deepest + k] = plain[k * columns + x];
        }
      WeightBlock<P> block{{plain, columns, false}, {}, 0, depths[i], 0, columns};
      packed[i].resize(static_cast<std::size_t>(block.words() * stride) + 1);
      block.pack(packed[i].data());
      for (const T v : packed[i]) half[i].push_back(Bfloat16::from(static_cast<float>(v)));
      if (lie == Lie::packed) block.packed = {packed[i].data(), nullptr};
      if (lie == Lie::rounded) block.packed = {nullptr, half[i].data(), counted_half_tile<P>()};
      if (lie == Lie::gathered) block.b = Operand<T>{to, columns, false, gather.data()};
      if (lie == Lie::transposed) block.b = Operand<T>{to, deepest, true};
      blocks.push_back(block);
      of_rows[i].resize(static_cast<std::size_t>((rows + Tile<P>::unit) * Tile<P>::stride));
      cpu::pack_rows<P>(Operand<T>{a.data(), deepest, true}, 0, rows, 0, depths[i], of_rows[i].data());
    }
    BlockProduct<P> product(panels.data());
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      T* const to = result.data() + static_cast<Index>(i) * size;
      product.run(RowBlock::all<P>(rows), of_rows[i].data(), blocks[i],
                  i + 1 < blocks.size() ? &blocks[i + 1] : nullptr, add ? cpu::Into::add : cpu::Into::store,
                  in_rows ? Sums<T>::rows(to, stride) : Sums<T>::panels(to, rows));
    }
    // Collects the sums element by element from either layout. Skips elements past the last column.
    std::vector<T> elements;
    for (std::size_t i = 0; i < blocks.size(); ++i)
      for (Index r = 0; r < rows; ++r)
        for (Index x = 0; x < columns; ++x)
          elements.push_back(result[i * static_cast<std::size_t>(size) +
                                    static_cast<std::size_t>(
                                        in_rows ? r * stride + x : x / width * rows * width + r * width + x % width)]);
    return elements;
  }
  /// Compares some elements with the chains of equation (1) in tile.hpp.
  void check_chains(const std::vector<T>& sums, bool add) const {
    using V = cpu::Register<T>;
    std::size_t i = 0;
    for (std::size_t d = 0; d < depths.size(); ++d)
      for (Index r = 0; r < rows; ++r)
        for (Index x = 0; x < columns; ++x, ++i) {
          if ((r * 7 + x) % 13 != 0) continue;
          V s(T(0));
          for (Index k = 0; k < depths[d]; ++k)
            s = madd(V(a[std::size_t(r * deepest + k)]), V(b[std::size_t((Index(d) * deepest + k) * columns + x)]), s);
          T lanes[V::size];
          s.store(lanes);
          CHECK(sums[i] == (add ? T(0.5) + lanes[0] : lanes[0]));
        }
  }
};

}  // namespace

TEST_CASE_TEMPLATE("block product: bits do not depend on layout of weights", P, GATEFOLD_PRODUCTS_OF) {
  using T = cpu::SumOf<P>;
  constexpr Index width = Tile<P>::columns, tile = Tile<P>::rows;
  std::vector<Index> heights{tile + 1, 3 * tile, 4 * tile + 1, 7 * tile};
  for (Index rows = 1; rows <= tile; ++rows) heights.push_back(rows);
  for (const Index rows : heights)
    for (const Index columns : {Index(1), width, 3 * width + 1, Tile<P>::depth, Tile<P>::depth - width})
      // Deep blocks, shallow ones, a depth that ends inside a word, and depth 0.
      for (const auto& depths : {std::vector<Index>{256, 256}, {256, 3, 256, 129}, {0, 40}, {7}})
        for (const bool add : {false, true}) {
          if (support::slow_build && (rows % 5 != 1 || columns == width)) continue;
          CAPTURE(rows);
          CAPTURE(columns);
          const Task<P> task(rows, columns, depths);
          const std::vector<T> expected = task.run(Lie::transposed, add, false);
          for (const bool in_rows : {false, true}) {
            CHECK(task.run(Lie::plain, add, in_rows) == expected);
            CHECK(task.run(Lie::gathered, add, in_rows) == expected);
            CHECK(task.run(Lie::packed, add, in_rows) == expected);
          }
          if constexpr (std::is_same_v<P, T>) task.check_chains(expected, add);
        }
}

#if defined(__linux__)
TEST_CASE_TEMPLATE("block product: reads no weights past the last row", P, GATEFOLD_PRODUCTS_OF) {
  using T = cpu::SumOf<P>;
  cpu::AmxTiles<P>::permit();
  constexpr Index width = Tile<P>::columns, all = Tile<P>::depth;
  for (const Index columns : {width, width + 3, 8 * width})
    for (const Index depth : {all, Index(7)})  // all rows of the block, and a depth that ends inside a word
      for (const Index rows : {1, 2, Tile<P>::rows - 1, 2 * Tile<P>::rows, 7 * Tile<P>::rows}) {
        const Task<P> task(rows, columns, {all});
        const support::Guarded<T> b(task.b);
        std::vector<T> a(static_cast<std::size_t>((rows + Tile<P>::unit) * Tile<P>::stride)),
            panels(static_cast<std::size_t>(BlockProduct<P>::memory(cpu::on_amx<P>, all, columns))),
            packed(static_cast<std::size_t>(cpu::PackedMatrix<P>::size(all, columns)));
        cpu::pack_rows<P>(Operand<T>{task.a.data(), all, true}, 0, rows, 0, depth, a.data());
        WeightBlock<P> block{{b.data(), columns, false}, {}, all - depth, depth, 0, columns};
        const auto run = [&] {
          std::vector<T> sums(static_cast<std::size_t>(rows * divide_up(columns, width) * width));
          BlockProduct<P>(panels.data())
              .run(RowBlock::all<P>(rows), a.data(), block, nullptr, cpu::Into::store,
                   Sums<T>::panels(sums.data(), rows));
          return sums;
        };
        const std::vector<T> in_place = run();
        block.pack(packed.data());
        block.packed = {packed.data(), nullptr};
        const std::vector<T> expected = run();
        int wrong = 0;
        for (Index r = 0; r < rows; ++r)
          for (Index x = 0; x < columns; ++x) {
            const auto at = static_cast<std::size_t>(x / width * rows * width + r * width + x % width);
            wrong += in_place[at] != expected[at];
          }
        CHECK(wrong == 0);
      }
}
#endif

TEST_CASE("block product: bfloat16 weights give the results of rounded floats") {
  for (const Index rows : {1, 3, 9, 40, 200}) {
    Task<float> task(rows, 70, {256, 30});
    half_tiles = 0;
    const auto rounded = task.run(Lie::rounded, false, false);
    CHECK((half_tiles > 0) == (rows <= Tile<float>::rows));  // with several tiles, each panel is widened once
    for (float& v : task.b) v = float(Bfloat16::from(v));
    CHECK(task.run(Lie::plain, false, false) == rounded);
  }
}
