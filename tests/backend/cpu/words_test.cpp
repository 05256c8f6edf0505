#include "gatefold/backend/cpu/words.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "support/naive.hpp"
#include "support/products_of.hpp"
#include "support/words.hpp"

using namespace gatefold;

using support::factor;
using support::value_of_word;

TEST_CASE("words: returns the number of words of a line") {
  static_assert(cpu::values_of_word<float> == 1 && cpu::values_of_word<double> == 1);
  static_assert(std::is_same_v<cpu::SumOf<Bfloat16>, float> && std::is_same_v<cpu::SumOf<double>, double>);
  CHECK(cpu::words<float>(7) == 7);
  CHECK(cpu::words<Bfloat16>(0) == 0);
  CHECK(cpu::words<Bfloat16>(7) == (cpu::on_amx<Bfloat16> ? 16 : cpu::bfloat16_pairs ? 4 : 7));
  CHECK(cpu::words<Bfloat16>(256) == (cpu::bfloat16_pairs ? 128 : 256));
}

TEST_CASE_TEMPLATE("words: register loads give the same values as word()", P, GATEFOLD_PRODUCTS_OF) {
  using T = cpu::SumOf<P>;
  constexpr int size = cpu::Register<T>::size, values = cpu::values_of_word<P>;
  const auto x = naive::random_vector<T>(200, 7);
  const auto expect = [&](const auto& words, Index count, const auto& element) {
    for (Index w = 0; w < count; ++w)
      for (int n = 1; n <= size && w + n <= count; ++n) {
        T lanes[size];
        words.load(w, n).store(lanes);
        int wrong = 0;
        for (int lane = 0; lane < size; ++lane)
          for (Index i = 0; i < values; ++i)
            wrong += value_of_word<P>(lanes[lane], i) != (lane < n ? element(w + lane, i) : T(0));
        for (Index i = 0; i < values; ++i) wrong += value_of_word<P>(words.word(w), i) != element(w, i);
        CHECK(wrong == 0);
      }
  };
  for (const Index depth : {1, 2, 31, 64, 67})
    expect(cpu::WordsAlong<P>{x.data(), depth}, cpu::words<P>(depth), [&](Index w, Index i) {
      const Index k = w * values + i;
      return k < depth ? factor<P>(x[static_cast<std::size_t>(k)]) : T(0);
    });
  for (const Index rows : {0, 1, 2}) {
    if (rows == 0 && values == 1) continue;  // only pairs are filled up with zero rows
    expect(cpu::WordsAcross<P>{rows > 0 ? x.data() : nullptr, rows > 1 ? x.data() + 90 : nullptr}, 40,
           [&](Index c, Index i) { return i < rows ? factor<P>(x[static_cast<std::size_t>(c + 90 * i)]) : T(0); });
  }
}

TEST_CASE("words: load equals single words for subnormals and NaN") {
  const float least = std::numeric_limits<float>::denorm_min(), normal = std::numeric_limits<float>::min();
  std::vector<float> x{least,
                       -least,
                       normal,
                       std::nextafter(normal, 0.0f),
                       -normal,
                       0,
                       -0.0f,
                       std::numeric_limits<float>::infinity(),
                       std::numeric_limits<float>::quiet_NaN(),
                       1};
  x.resize(64, 0.5f);
  const cpu::WordsAlong<Bfloat16> along{x.data(), 64};
  float lanes[cpu::Register<float>::size];
  for (Index w = 0; w + cpu::Register<float>::size <= cpu::words<Bfloat16>(64); ++w) {
    along.load(w, cpu::Register<float>::size).store(lanes);
    const float word = along.word(w);
    CHECK(std::memcmp(lanes, &word, sizeof word) == 0);
  }
}

using cpu::Operand;

TEST_CASE("Operand (1): returns elements of plain and gathered rows") {
  const std::vector<float> data{0, 1, 2, 3, 4, 5};  // [3, 2]
  const std::vector<Index> rows{2, 0};
  const Operand<float> plain{data.data(), 2, true}, gathered{data.data(), 2, true, rows.data()};
  CHECK(*plain.at(1, 1) == 3);
  CHECK(*gathered.at(0, 1) == 5);
  CHECK(*gathered.at(1, 0) == 0);
}
