#include "gatefold/backend/cpu/tile.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include "gatefold/backend/cpu/amx.hpp"
#include "gatefold/backend/cpu/pack.hpp"
#include "support/larger.hpp"
#include "support/naive.hpp"
#include "support/products_of.hpp"
#include "support/words.hpp"

using namespace gatefold;
using cpu::Tile;

TEST_CASE_TEMPLATE("tile_sum (1): equals loops for tiles of any size", T, float, double) {
  constexpr Index width = Tile<T>::columns, stride = Tile<T>::stride;
  for (const Index depth : {0, 1, 2, 5, 64, 255, 256}) {
    const auto a = naive::random_vector<T>(Tile<T>::rows * stride, 2),
               b = naive::random_vector<T>((depth + 1) * width, 3);
    for (Index rows = 1; rows <= Tile<T>::rows; ++rows) {
      std::vector<T> tile(static_cast<std::size_t>(rows * width), T(1));
      cpu::tile_sum<T>(rows, width, depth, a.data(), b.data(), tile.data(), cpu::Tile<T>::columns, cpu::Into::store,
                       cpu::Prefetch::nothing(b.data()));
      double worst = 0;
      for (Index i = 0; i < rows; ++i)
        for (Index j = 0; j < width; ++j) {
          double sum = 0;
          for (Index k = 0; k < depth; ++k)
            sum += static_cast<double>(a[static_cast<std::size_t>(i * stride + k)]) *
                   static_cast<double>(b[static_cast<std::size_t>(k * width + j)]);
          worst = support::larger(worst,
                                  std::abs(sum - static_cast<double>(tile[static_cast<std::size_t>(i * width + j)])));
        }
      CHECK(worst <= 256 * std::numeric_limits<T>::epsilon());
      std::vector<T> twice = tile;
      cpu::tile_sum<T>(rows, width, depth, a.data(), b.data(), twice.data(), cpu::Tile<T>::columns, cpu::Into::add,
                       cpu::Prefetch::nothing(b.data()));
      int wrong = 0;
      for (std::size_t i = 0; i < tile.size(); ++i) wrong += twice[i] != tile[i] + tile[i];
      CHECK(wrong == 0);
      for (const Index columns : {Index(1), Index(Tile<T>::size), Index(Tile<T>::size + 1)}) {
        std::vector<T> narrow(tile.size(), T(1));
        cpu::tile_sum<T>(rows, columns, depth, a.data(), b.data(), narrow.data(), cpu::Tile<T>::columns,
                         cpu::Into::store, cpu::Prefetch::nothing(b.data()));
        for (Index i = 0; i < rows; ++i)
          CHECK(std::memcmp(&narrow[static_cast<std::size_t>(i * width)], &tile[static_cast<std::size_t>(i * width)],
                            static_cast<std::size_t>(columns) * sizeof(T)) == 0);
      }
    }
  }
}

TEST_CASE_TEMPLATE("tile_sum (1): bfloat16 rows have equal bits in any tile", P, Bfloat16) {
  cpu::AmxTiles<P>::permit();
  [[maybe_unused]] const cpu::AmxTiles<P> tiles;
  constexpr Index width = Tile<P>::columns;
  const Index most = Tile<P>::rows, values = 256;
  const auto a = naive::random_vector<float>(most * values, 2), b = naive::random_vector<float>(values * width, 3);
  for (const Index depth : {1, 2, 5, 64, 255, 256}) {
    std::vector<float> rows(static_cast<std::size_t>(most * Tile<P>::stride)),
        panel(static_cast<std::size_t>(cpu::words<P>(depth) * width)), all(static_cast<std::size_t>(most * width));
    cpu::pack_rows<P>({a.data(), values, true}, 0, most, 0, depth, rows.data());
    cpu::pack_panels<P>({b.data(), width, false}, 0, width, 0, depth, panel.data());
    rows.resize(rows.size() + Tile<P>::unit * Tile<P>::stride);  // room for a whole unit that begins with the last row
    const auto sum = [&](Index first, Index count, float* to) {
      cpu::tile_sum<P>(count, width, cpu::words<P>(depth), rows.data() + first * Tile<P>::stride, panel.data(), to,
                       width, cpu::Into::store, cpu::Prefetch::nothing(panel.data()));
    };
    sum(0, most, all.data());
    for (Index i = 0; i < most; ++i) {
      std::vector<float> alone(static_cast<std::size_t>(width));
      sum(i, 1, alone.data());
      CHECK(std::memcmp(alone.data(), &all[static_cast<std::size_t>(i * width)], alone.size() * sizeof(float)) == 0);
      int wrong = 0;
      for (Index j = 0; j < width; ++j) {
        double expected = 0, absolute = 0;
        for (Index k = 0; k < depth; ++k) {
          const double term = double(support::factor<P>(a[static_cast<std::size_t>(i * values + k)])) *
                              double(support::factor<P>(b[static_cast<std::size_t>(k * width + j)]));
          expected += term;
          absolute += std::abs(term);
        }
        // Each of the `depth` additions may be off by half a unit of a partial sum.
        wrong += !(std::abs(double(alone[static_cast<std::size_t>(j)]) - expected) <=
                   static_cast<double>(depth) * 0x1p-24 * absolute);
      }
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE_TEMPLATE("tile_sum: non-temporal stores equal ordinary sums", P, GATEFOLD_PRODUCTS_OF) {
  using T = cpu::SumOf<P>;
  if constexpr (!cpu::on_amx<P>) {
    constexpr Index width = Tile<P>::columns, most = Tile<P>::rows;
    alignas(64) T past[most * width], zeros[most * width];
    for (const Index depth : {Index(0), Index(1), cpu::words<P>(77)})
      for (Index rows = 1; rows <= most; ++rows)
        for (const Index columns : {Index(Tile<P>::size), width})
          for (const bool tiny : {false, true}) {  // tiny: numbers whose products underflow, to -0 too
            auto a = naive::random_vector<T>(most * Tile<P>::stride, 2), b = naive::random_vector<T>(depth * width, 3);
            for (auto* operand : {&a, &b})
              for (T& word : *operand) {
                if (tiny) word *= std::numeric_limits<T>::min();
                word = cpu::WordsAcross<P>{&word, &word}.word(0);
              }
            std::fill_n(past, most * width, std::numeric_limits<T>::quiet_NaN());
            std::fill_n(zeros, most * width, T(0));
            const auto sum = [&](T* to, cpu::Into into) {
              cpu::tile_sum<P>(rows, columns, depth, a.data(), b.data(), to, width, into,
                               cpu::Prefetch::nothing(a.data()));
            };
            sum(past, cpu::Into::stream);
            cpu::packet::end_of_stream();
            sum(zeros, cpu::Into::add);
            for (Index i = 0; i < most; ++i)
              for (Index j = 0; j < width; ++j) {
                const bool there = i < rows && (j < columns || columns == width);
                const T got = past[i * width + j];
                if (there ? std::memcmp(&got, &zeros[i * width + j], sizeof(T)) != 0 : got == got)
                  FAIL_CHECK("row " << i << " of " << rows << ", column " << j << " of " << columns);
              }
          }
  }
}
