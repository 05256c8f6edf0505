#include "gatefold/backend/cpu/skinny_panels.hpp"

#include <doctest/doctest.h>

#include <type_traits>
#include <vector>

#include "gatefold/backend/cpu/skinny.hpp"
#include "support/naive.hpp"

using namespace gatefold;

namespace {

/// skinny_panels_sum of `panels` panels that lie one after the other, against the skinny sum of each alone.
template <class T, class W>
void panels_agree(const std::vector<W>& b, Index depth, Index most_panels) {
  constexpr Index width = cpu::Tile<T>::columns;
  const std::vector<T> wide(b.begin(), b.end());
  const auto a = naive::random_vector<T>(cpu::tuning.skinny_panel_rows * cpu::Tile<T>::stride, 5);
  for (Index rows = 1; rows <= cpu::tuning.skinny_panel_rows; ++rows)
    for (Index panels = 1; panels <= most_panels; ++panels)
      for (const bool add : {false, true}) {
        std::vector<T> sums(static_cast<std::size_t>(panels * rows * width), T(0.75));
        cpu::skinny_panels_sum<T>(rows, panels, depth, a.data(), b.data(), sums.data(), add);
        int wrong = 0;
        for (Index p = 0; p < panels; ++p) {
          std::vector<T> expected(static_cast<std::size_t>(rows * width));
          cpu::skinny_sum<T>(rows, depth, a.data(), wide.data() + p * depth * width, width, width, expected.data(),
                             width);
          for (Index i = 0; i < rows * width; ++i)
            wrong += sums[static_cast<std::size_t>(p * rows * width + i)] !=
                     (add ? T(0.75) : T(0)) + expected[static_cast<std::size_t>(i)];
        }
        CHECK(wrong == 0);
      }
}

}  // namespace

TEST_CASE_TEMPLATE("panels together have the chains of each alone, of floats and of bfloat16", T, float, double) {
  for (const Index depth : {1, 3, 40, 256}) {
    const auto b = naive::random_vector<T>(5 * depth * cpu::Tile<T>::columns, 6);
    panels_agree<T>(b, depth, 5);
    if constexpr (std::is_same_v<T, float>) {
      std::vector<Bfloat16> half;
      for (const float v : b) half.push_back(Bfloat16::from(v));
      panels_agree<T>(half, depth, 5);
    }
  }
}
