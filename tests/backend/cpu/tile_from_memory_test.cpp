#include "gatefold/backend/cpu/tile_from_memory.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <type_traits>
#include <vector>

#include "gatefold/backend/cpu/pack.hpp"
#include "support/guarded.hpp"
#include "support/naive.hpp"
#include "support/products_of.hpp"

using namespace gatefold;
using cpu::Operand;
using cpu::Tile;

namespace {

/// Packed rows of A, and B as a matrix and as packed panels. All other layouts must give the sums of the packed panels.
template <class P>
struct Products {
  using T = cpu::SumOf<P>;
  static constexpr Index width = Tile<P>::columns, most = Tile<P>::rows, panels = 8;
  Index depth, words, stride;  // of B
  std::vector<T> a, b, packed;

  explicit Products(Index d) : depth(d), words(cpu::words<P>(d)), stride(panels * width + 3) {
    const auto values = naive::random_vector<T>(most * depth, 1);
    a.resize(static_cast<std::size_t>(most * Tile<P>::stride));
    cpu::pack_rows<P>(Operand<T>{values.data(), depth, true}, 0, most, 0, depth, a.data());
    b = naive::random_vector<T>(depth * stride - 3, 2);
    packed.resize(static_cast<std::size_t>(words * panels * width));
    cpu::pack_panels<P>(Operand<T>{b.data(), stride, false}, 0, panels * width, 0, depth, packed.data());
  }
  /// Returns the sums [panels][rows, width].
  std::vector<T> expected(Index rows, Index count, const std::vector<T>& panel_words) const {
    std::vector<T> sums(static_cast<std::size_t>(count * rows * width), T(0.75));
    for (Index p = 0; p < count; ++p)
      cpu::tile_sum<P>(rows, width, words, a.data(), panel_words.data() + p * words * width,
                       sums.data() + p * rows * width, width, cpu::Into::add,
                       cpu::Prefetch::nothing(panel_words.data()));
    return sums;
  }
  /// Compares the sums of sum_from_memory with the expected sums, first written into panels, then into rows of a
  /// matrix. Checks that the other elements of the matrix keep their values.
  template <class Source>
  void check(const Source& source, Index rows, Index count, const std::vector<T>& panel_words) const {
    const std::vector<T> all = expected(rows, count, panel_words);
    std::vector<T> sums(all.size(), T(0.75));
    cpu::sum_from_memory<P>(rows, count, words, a.data(), source, sums.data(), width, rows * width, cpu::Into::add);
    CHECK(std::memcmp(sums.data(), all.data(), sums.size() * sizeof(T)) == 0);
    const Index row = count * width + 5;
    std::vector<T> matrix(static_cast<std::size_t>(rows * row), T(0.75));
    cpu::sum_from_memory<P>(rows, count, words, a.data(), source, matrix.data(), row, width, cpu::Into::add);
    int wrong = 0;
    for (Index i = 0; i < rows; ++i)
      for (Index x = 0; x < row; ++x)
        wrong += matrix[std::size_t(i * row + x)] !=
                 (x < count * width ? all[std::size_t((x / width * rows + i) * width + x % width)] : T(0.75));
    CHECK(wrong == 0);
  }
};

}  // namespace

TEST_CASE_TEMPLATE("RowsInPlace: has the bits of packed panels", P, GATEFOLD_PRODUCTS_OF) {
  if constexpr (!cpu::on_amx<P>) {
    using Source = cpu::RowsInPlace<P>;
    using T = typename Source::T;
    constexpr Index width = Tile<P>::columns;
    for (const Index depth : {1, 2, 5, 64, 127, 254}) {
      const Products<P> products(depth);
      const Index words = products.words;
#if defined(__linux__)
      const support::Guarded<T> b(products.b);  // a read past the end stops the program
#else
      const std::vector<T>& b = products.b;
#endif
      for (Index rows = 1; rows <= Tile<P>::rows; ++rows)
        for (const Index count : {1, cpu::panels_at_once<P>(rows)}) {
          const Index at = (Products<P>::panels - count) * width;
          std::vector<T> panels(products.packed.begin() + at * words, products.packed.end());
          products.check(Source{b.data() + at, products.stride, products.depth, nullptr, b.data(), products.stride},
                         rows, count, panels);
          if (count > 1) continue;
          std::vector<T> copy(static_cast<std::size_t>(words * width) + 1, T(9));
          products.check(Source{b.data() + at, products.stride, products.depth, copy.data()}, rows, 1, panels);
          CHECK(std::memcmp(copy.data(), panels.data(), static_cast<std::size_t>(words * width) * sizeof(T)) == 0);
          CHECK(copy.back() == T(9));
        }
    }
  }
}

TEST_CASE_TEMPLATE("packed_panels: several panels at once equal separate panels", P, GATEFOLD_PRODUCTS_OF) {
  if constexpr (!cpu::on_amx<P>) {
    using T = cpu::SumOf<P>;
    for (const Index depth : {1, 3, 40, 255}) {
      const Products<P> products(depth);
      std::vector<Bfloat16> half;
      for (const T v : products.packed) half.push_back(Bfloat16::from(static_cast<float>(v)));
      const std::vector<T> widened(half.begin(), half.end());
      const Index panel = products.words * Products<P>::width;
      for (Index rows = 1; rows <= Tile<P>::rows; ++rows)
        for (const Index count : {1, cpu::panels_at_once<P>(rows)}) {
          products.check(cpu::packed_panels<P>(products.packed.data(), panel, count), rows, count, products.packed);
          if constexpr (std::is_same_v<T, float> && cpu::values_of_word<P> == 1)
            products.check(cpu::packed_panels<P>(half.data(), panel, count), rows, count, widened);
        }
    }
  }
}

TEST_CASE("panels_at_once: tiles of few rows use several panels") {
  constexpr auto panels = [](Index rows) { return cpu::panels_at_once<float>(rows); };
  for (Index rows = 1; rows <= Tile<float>::rows; ++rows) {
    CHECK(panels(rows) >= 1);
    CHECK(panels(rows) * rows <= Tile<float>::rows);
    CHECK(panels(rows) <= panels(std::max<Index>(rows - 1, 1)));
  }
  CHECK(panels(1) > 1);
  CHECK(panels(Tile<float>::rows) == 1);
}
