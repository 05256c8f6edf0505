#include "gatefold/backend/cpu/weight_block.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "support/naive.hpp"

using namespace gatefold;
using cpu::Tile;
using cpu::WeightBlock;

namespace {

constexpr Index rows = 90, columns = 200;

template <class T>
WeightBlock<T> block(const std::vector<T>& b, bool transposed, const T* packed) {
  return {{b.data(), transposed ? rows : columns, transposed}, {packed, nullptr}, 10, 70, 33, 2 * Tile<T>::columns + 3};
}

}  // namespace

TEST_CASE_TEMPLATE("WeightBlock: packs its rows and columns into panels", T, float, double) {
  constexpr Index width = Tile<T>::columns;
  const auto b = naive::random_vector<T>(rows * columns, 1);
  for (const bool transposed : {false, true}) {
    std::vector<T> packed(static_cast<std::size_t>(70 * 3 * width), T(9));
    const WeightBlock<T> w = block(b, transposed, packed.data());
    w.pack(packed.data());
    int wrong = 0;
    for (Index x = 0; x < 3 * width; ++x)
      for (Index k = 0; k < 70; ++k) {
        const auto at = static_cast<std::size_t>(transposed ? (33 + x) * rows + 10 + k : (10 + k) * columns + 33 + x);
        wrong += w.panel(x / width * width, nullptr)[k * width + x % width] != (x < w.columns ? b[at] : T(0));
      }
    CHECK(wrong == 0);
    // Packs one panel by itself, also the last one.
    for (const Index x : {width, 2 * width}) {
      std::vector<T> panel(static_cast<std::size_t>(70 * width), T(9));
      w.pack_panel(x, panel.data());
      CHECK(std::equal(panel.begin(), panel.end(), w.panel(x, nullptr)));
    }
  }
}

TEST_CASE_TEMPLATE("WeightBlock: prefetches its next panel or rows", T, float, double) {
  constexpr Index width = Tile<T>::columns, size = sizeof(T);
  const auto b = naive::random_vector<T>(rows * columns, 1);
  const std::vector<T> values(static_cast<std::size_t>(70 * 2 * width));
  const T* const packed = values.data();
  const auto address = [](const T* p) { return reinterpret_cast<const char*>(p); };
  CHECK(block(b, false, packed).prefetch_panel(0, 1, 2).first.next == address(packed + 70 * width / 2));
  CHECK(block(b, false, packed).prefetch_panel(width, 0, 2).first.next == address(packed + 70 * width));
  const WeightBlock<T> lies = block<T>(b, false, nullptr), stands = block<T>(b, true, nullptr);
  CHECK(lies.prefetch(0, 2).first.next == address(b.data() + 10 * columns + 33));
  CHECK(lies.prefetch(1, 2).first.next == address(b.data() + (10 + 35) * columns + 33));
  CHECK(stands.prefetch(0, 2).first.next == address(b.data() + 33 * rows + 10));
  CHECK(lies.prefetch_panel(width, 0, 1).first.next == address(b.data() + 10 * columns + 33 + width));
  CHECK(lies.prefetch_panel(width, 0, 1).first.run == (width * size + 63) / 64);
  CHECK(lies.prefetch_panel(2 * width, 0, 1).first.run == 1);  // the last panel has three columns
  WeightBlock<T> none = lies;
  none.depth = 0;
  CHECK(none.empty());
  CHECK(none.prefetch(0, 1).first.run == 1);
  CHECK(none.prefetch_panel(width, 0, 1).first.run == 1);
}
