#include "gatefold/backend/cpu/pair_task.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/backend/cpu/packed_weights.hpp"
#include "support/larger.hpp"
#include "support/naive.hpp"

using namespace gatefold;
using cpu::PairWeights;
using cpu::Tile;
using cpu::WeightBlock;

namespace {

/// Returns v + w + bias[j] for two first products, or v + bias[j] for one. The bias shows a wrong column.
template <class T>
struct First {
  std::vector<T> bias;
  template <class A, class V>
  V operator()(const A& at, Index, Index, Index j, V v) const {
    return v + at.load(&bias[static_cast<std::size_t>(j)]);
  }
  template <class A, class V>
  V operator()(const A& at, Index e, Index s, Index j, V v, V w) const {
    return (*this)(at, e, s, j, v + w);
  }
};

template <class T>
struct ExpertWeights {
  Index depth, hidden, columns, ups;
  std::vector<T> up, more, down, packed;
  cpu::PairBatch<T> batch;

  ExpertWeights(Index d, Index h, Index c, Index m) : depth(d), hidden(h), columns(c), ups(m) {
    up = naive::random_vector<T>(2 * d * h, 1);
    more = naive::random_vector<T>(2 * d * h, 2);
    down = naive::random_vector<T>(2 * h * c, 3);
    batch = {.up = {up.data(), more.data()},
             .ups = m,
             .down = down.data(),
             .depth = d,
             .hidden = h,
             .columns = c,
             .experts = 2};
    packed.resize(static_cast<std::size_t>(batch.packed_size()));
  }
  ExpertWeights(const ExpertWeights&) = delete;
};

}  // namespace

TEST_CASE_TEMPLATE("PairWeights: chunks cover all weights once, packed size fits", T, float, double) {
  for (const Index ups : {1, 2}) {
    ExpertWeights<T> w(300, 600, 260, ups);
    std::fill(w.packed.begin(), w.packed.end(), T(9));
    const PairWeights<T> plain(w.batch, 1, nullptr), shared(w.batch, 1, w.packed.data());
    REQUIRE(plain.size() == 3 * plain.of_chunk());
    std::vector<int> first(w.up.size()), second(w.more.size()), last(w.down.size());
    for (Index i = 0; i < plain.size(); ++i) {
      const WeightBlock<T> block = plain[i];
      CHECK(!block.packed);
      const bool of_down = i % plain.of_chunk() >= ups * 2, of_more = !of_down && i % plain.of_chunk() >= 2;
      CHECK((of_down ? block.k : block.column) / Tile<T>::depth == i / plain.of_chunk());  // of the right chunk
      const std::vector<T>& from = of_down ? w.down : of_more ? w.more : w.up;
      std::vector<int>& seen = of_down ? last : of_more ? second : first;
      for (Index k = 0; k < block.depth; ++k)
        for (Index x = 0; x < block.columns; ++x)
          ++seen[static_cast<std::size_t>(block.b.at(block.k + k, block.column + x) - from.data())];
      shared.pack(i);
    }
    const auto each = [](const std::vector<int>& seen, int times) {
      const auto half = seen.begin() + static_cast<std::ptrdiff_t>(seen.size() / 2);
      return std::count(seen.begin(), half, 0) == half - seen.begin() &&
             std::count(half, seen.end(), times) == seen.end() - half;
    };
    CHECK(each(first, 1));
    CHECK(each(second, ups - 1));
    CHECK(each(last, 1));
    CHECK(std::count(w.packed.begin(), w.packed.end(), T(9)) == 0);
    for (Index i = 0; i < shared.size(); ++i) {
      const WeightBlock<T> block = shared[i];
      std::vector<T> expected(static_cast<std::size_t>(cpu::PackedMatrix<T>::size(block.depth, block.columns)));
      block.pack(expected.data());
      CHECK(std::equal(expected.begin(), expected.end(), block.packed.full));
    }
  }
}

TEST_CASE_TEMPLATE("PairWeights: reads the prepacked weights of its expert", T, float, double) {
  ExpertWeights<T> w(300, 600, 260, 2);
  cpu::PackedWeights packed;
  Cpu::Context ctx(1);
  packed.add<T>(ctx, w.up.data(), 2, w.depth, w.hidden, Weights::unchanged);
  packed.add<T>(ctx, w.more.data(), 2, w.depth, w.hidden, Weights::unchanged);
  packed.add<T>(ctx, w.down.data(), 2, w.hidden, w.columns, Weights::unchanged);
  w.batch.packed_up = {packed.find<T>(std::as_const(w.up).data()), packed.find<T>(std::as_const(w.more).data())};
  w.batch.packed_down = packed.find<T>(std::as_const(w.down).data());
  for (const Index e : {0, 1}) {
    const PairWeights<T> weights(w.batch, e, nullptr);
    for (Index i = 0; i < weights.size(); ++i) {
      const WeightBlock<T> block = weights[i];
      std::vector<T> expected(static_cast<std::size_t>(cpu::PackedMatrix<T>::size(block.depth, block.columns)));
      block.pack(expected.data());
      CHECK(std::equal(expected.begin(), expected.end(), block.packed.full));
    }
  }
}

TEST_CASE_TEMPLATE("PairTask: runs rows through both products chunk by chunk", T, float, double) {
  constexpr Index rows = 20, depth = 300, hidden = 300, width = Tile<T>::columns, columns = Tile<T>::depth + width;
  for (const Index ups : {1, 2}) {
    ExpertWeights<T> w(depth, hidden, columns, ups);
    const auto x = naive::random_vector<T>(rows * depth, 5);
    w.batch.a = {x.data(), depth, true};
    const First<T> first{naive::random_vector<T>(hidden, 6)};
    const auto epilogue =
        ups == 2 ? cpu::HiddenEpilogue<T>::template with<2>(first) : cpu::HiddenEpilogue<T>::template with<1>(first);
    std::vector<T> a(rows * 2 * Tile<T>::stride), kept(rows * Tile<T>::stride), sums(rows * columns),
        firsts(2 * rows * Tile<T>::depth),
        panels(static_cast<std::size_t>(cpu::BlockProduct<T>::memory(false, depth, columns)));
    const PairWeights<T> weights(w.batch, 1, nullptr);
    cpu::PairTask<T> task(w.batch, epilogue, 1, cpu::RowBlock::all<T>(rows), weights, weights.size(),
                          {a.data(), kept.data(), firsts.data(), nullptr, panels.data()});
    for (Index chunk = 0; chunk < 2; ++chunk) task.run(chunk, chunk > 0, cpu::Sums<T>::panels(sums.data(), rows));
    double worst = 0;
    for (Index i = 0; i < rows; ++i) {
      std::vector<double> h(first.bias.begin(), first.bias.end());
      for (Index j = 0; j < hidden; ++j)
        for (Index k = 0; k < depth; ++k) {
          const auto at = static_cast<std::size_t>((depth + k) * hidden + j);
          h[static_cast<std::size_t>(j)] += double(x[static_cast<std::size_t>(i * depth + k)]) *
                                            (double(w.up[at]) + (ups == 2 ? double(w.more[at]) : 0));
        }
      for (Index c = 0; c < columns; ++c) {
        double sum = 0;
        for (Index j = 0; j < hidden; ++j)
          sum += h[static_cast<std::size_t>(j)] * double(w.down[static_cast<std::size_t>((hidden + j) * columns + c)]);
        const auto at = static_cast<std::size_t>((c / width * rows + i) * width + c % width);
        worst = support::larger(worst, std::abs(sum - double(sums[at])));
      }
    }
    CHECK(worst <= 3e4 * double(std::numeric_limits<T>::epsilon()));
  }
}
