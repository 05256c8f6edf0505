#include "gatefold/backend/cpu/pack.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "support/naive.hpp"
#include "support/products_of.hpp"
#include "support/words.hpp"

using namespace gatefold;
using cpu::Operand;
using cpu::Tile;

TEST_CASE_TEMPLATE("packing: reads operands of both layouts, gathered or not", P, GATEFOLD_PRODUCTS_OF) {
  using T = cpu::SumOf<P>;
  constexpr Index width = Tile<P>::columns, stride = Tile<P>::stride, values = cpu::values_of_word<P>;
  const Index rows = 45, columns = 71, depth = 37;
  const auto data = naive::random_vector<T>(rows * columns, 1);
  std::vector<Index> gather;
  for (Index i = 0; i < rows; ++i) gather.push_back((i * 17 + 5) % rows);
  for (const bool lines_are_rows : {true, false})
    for (const Index* list : {static_cast<const Index*>(nullptr), static_cast<const Index*>(gather.data())})
      for (const Index lines : {1, 2, 7, 13, 39}) {
        const Index line = 5, k = 3, deep = std::min(depth, (lines_are_rows ? columns : rows) - k);
        const Operand<T> x{data.data(), columns, lines_are_rows, list};
        const Index all = cpu::words<P>(deep);
        // Returns value i of word `word` of line l, 0 past the line's last value.
        const auto element = [&](Index l, Index word, Index i) {
          const Index d = word * values + i;
          if (d >= deep) return T(0);
          const Index r = lines_are_rows ? line + l : k + d, c = lines_are_rows ? k + d : line + l;
          return support::factor<P>(data[static_cast<std::size_t>((list ? list[r] : r) * columns + c)]);
        };
        std::vector<T> a(static_cast<std::size_t>(lines * stride), T(9)),
            b(static_cast<std::size_t>((lines + width) * all), T(9));
        cpu::pack_rows<P>(x, line, lines, k, deep, a.data());
        cpu::pack_panels<P>(x, line, lines, k, deep, b.data());
        int wrong = 0;
        for (Index l = 0; l < lines; ++l)
          for (Index d = 0; d < stride; ++d)
            for (Index i = 0; i < values; ++i) {
              const T word = a[static_cast<std::size_t>(l * stride + d)];
              wrong += d < all ? support::value_of_word<P>(word, i) != element(l, d, i) : word != T(9);
            }
        for (Index l = 0; l < (lines + width - 1) / width * width; ++l)
          for (Index d = 0; d < all; ++d)
            for (Index i = 0; i < values; ++i)
              wrong += support::value_of_word<P>(b[static_cast<std::size_t>((l / width * all + d) * width + l % width)],
                                                 i) != (l < lines ? element(l, d, i) : T(0));
        CHECK(wrong == 0);
      }
}
