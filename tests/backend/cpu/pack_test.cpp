#include "gatefold/backend/cpu/pack.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "support/naive.hpp"

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
