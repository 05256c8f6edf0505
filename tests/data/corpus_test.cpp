#include "gatefold/data/corpus.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>
#include <vector>

#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::data;
using gatefold::support::message_of;

namespace {

/// Returns a text whose token t is t, so that each token shows where it was read.
std::vector<TokenId> counting(Index tokens) {
  std::vector<TokenId> ids(static_cast<std::size_t>(tokens));
  std::iota(ids.begin(), ids.end(), 0);
  return ids;
}
struct Batch {
  Corpus::Place place{};
  std::vector<Index> x, target;
  Batch(const Corpus& corpus, Index step)
      : x(static_cast<std::size_t>(corpus.batch_size * corpus.length)), target(x.size()) {
    place = corpus.batch(step, x, target);
  }
};

}  // namespace

TEST_CASE("Corpus (1), (2): rows are consecutive; targets are next tokens") {
  const auto ids = counting(32);  // 3 rows of 10 and 2 tokens left
  const Corpus corpus{.ids = ids, .batch_size = 3, .length = 4, .seed = Seed{1}};
  CHECK(corpus.columns() == 10);
  CHECK(corpus.blocks() == 2);
  const Batch first(corpus, 0), second(corpus, 1);
  CHECK(first.x == std::vector<Index>{0, 1, 2, 3, 10, 11, 12, 13, 20, 21, 22, 23});
  CHECK(first.target == std::vector<Index>{1, 2, 3, 4, 11, 12, 13, 14, 21, 22, 23, 24});
  CHECK(second.x == std::vector<Index>{4, 5, 6, 7, 14, 15, 16, 17, 24, 25, 26, 27});
  CHECK((first.place.clear && !second.place.clear && second.place.column == 4));
}

TEST_CASE("Corpus (3): a pass ends if no whole block fits") {
  for (const Index length : {1, 3, 4, 7})
    for (Index columns = length + 1; columns < 5 * length + 4; ++columns) {
      CAPTURE(length);
      CAPTURE(columns);
      const auto ids = counting(2 * columns + 1);
      const Corpus corpus{.ids = ids, .batch_size = 2, .length = length, .seed = Seed{7}};
      Index column = 0;
      bool clear = true;
      for (Index step = 0; step < 60; ++step) {
        const Corpus::Place place = corpus.place(step);
        if (clear && step > 0) {  // a random place in the first block
          CHECK(0 <= place.column);
          CHECK(place.column < std::min(length, columns - length));
          column = place.column;
        }
        CHECK(place.column == column);
        CHECK(place.clear == clear);
        CHECK((step == corpus.blocks()) == (clear && step > 0 && step <= corpus.blocks()));
        column += length;
        clear = column >= columns - length;
      }
    }
}

TEST_CASE("Corpus (3): passes after the first begin at random columns") {
  const auto ids = counting(101);
  const Index length = 10;
  const Corpus corpus{.ids = ids, .batch_size = 1, .length = length, .seed = Seed{3}};
  Corpus other = corpus;
  other.seed = Seed{4};
  std::vector<int> count(static_cast<std::size_t>(length));
  int passes = 0, differ = 0;
  for (Index step = corpus.blocks(); passes < 400; ++step) {
    const auto place = corpus.place(step);
    differ += place.column != other.place(step).column;
    if (!place.clear) continue;
    ++count[static_cast<std::size_t>(place.column)];
    ++passes;
  }
  CHECK(corpus.place(0).column == 0);
  CHECK(differ > 0);
  double chi_squared = 0;
  for (const int n : count) chi_squared += (n - 40.0) * (n - 40.0) / 40;
  CHECK(chi_squared < 9 + 5 * std::sqrt(18.0));
}

TEST_CASE("Corpus: a step's batch does not depend on earlier calls") {
  const auto ids = counting(500);
  const Corpus corpus{.ids = ids, .batch_size = 4, .length = 9, .seed = Seed{11}};
  std::vector<Batch> forward;
  for (Index step = 0; step < 50; ++step) forward.emplace_back(corpus, step);
  const Corpus again = corpus;
  for (Index step = 49; step >= 0; --step) {
    const Batch batch(again, step);
    const Batch& expected = forward[static_cast<std::size_t>(step)];
    CHECK(batch.x == expected.x);
    CHECK(batch.target == expected.target);
    CHECK((batch.place.column == expected.place.column && batch.place.clear == expected.place.clear));
  }
}

TEST_CASE("Corpus: one pass has every token of its blocks once") {
  const auto ids = counting(97);
  const Corpus corpus{.ids = ids, .batch_size = 3, .length = 5};
  std::multiset<Index> targets;
  for (Index step = 0; step < corpus.blocks(); ++step) {
    const Batch batch(corpus, step);
    targets.insert(batch.target.begin(), batch.target.end());
  }
  std::multiset<Index> expected;
  for (Index row = 0; row < 3; ++row)
    for (Index column = 1; column <= 30; ++column) expected.insert(row * 32 + column);
  CHECK(targets == expected);
}

TEST_CASE("Corpus: wrong options and sizes throw") {
  const auto ids = counting(10);
  const auto said = [&](Index batch_size, Index length, Index step = 0, Index elements = 8) {
    const Corpus corpus{.ids = ids, .batch_size = batch_size, .length = length};
    std::vector<Index> x(static_cast<std::size_t>(elements)), target(8);
    return message_of([&] { corpus.batch(step, x, target); });
  };
  CHECK(said(0, 4) == "Corpus: batch_size: expected at least 1, got 0");
  CHECK(said(2, 0) == "Corpus: length: expected at least 1, got 0");
  CHECK(said(2, 5) ==
        "Corpus: ids: expected at least batch_size * (length + 1) tokens, with batch_size = 2 and length = 5, got 10");
  CHECK(said(2, std::numeric_limits<Index>::max()) ==
        "Corpus: ids: expected at least batch_size * (length + 1) tokens, with batch_size = 2 and length = "
        "9223372036854775807, got 10");
  CHECK(said(2, 4, -1) == "Corpus: step: expected at least 0, got -1");
  CHECK(said(2, 4, 0, 7) == "Corpus.batch: x: expected 8 elements, got 7");
  CHECK(said(2, 4) == "no ArgumentError");
  CHECK(message_of([] { (void)Corpus{.batch_size = 0}.blocks(); }) == "Corpus: batch_size: expected at least 1, got 0");
}
