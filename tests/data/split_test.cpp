#include "gatefold/data/split.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <string>

#include "support/pass.hpp"

using namespace gatefold;
using namespace gatefold::data;
using gatefold::support::message_of;

namespace {

/// Returns one letter for each line: t, v or T.
std::string parts(const Split& split, Index lines) {
  std::string all;
  for (Index line = 0; line < lines; ++line) all += "tvT"[static_cast<int>(split.part(line, lines))];
  return all;
}

}  // namespace

TEST_CASE("Split: one stretch is training, then validation, then test") {
  CHECK(parts({.valid = 0.2, .test = 0.3}, 10) == "tttttvvTTT");
  CHECK(parts({.valid = 0, .test = 0}, 3) == "ttt");
  const std::string train(36, 't');
  CHECK(parts({}, 40) == train + "vvTT");
}

TEST_CASE("Split: several stretches of equal length, each with all parts") {
  CHECK(parts({.valid = 0.25, .test = 0.25, .stretches = 3}, 12) == "ttvTttvTttvT");
  CHECK(parts({.valid = 0.25, .test = 0.25, .stretches = 3}, 13) == "ttvTttvTtttvT");
  CHECK(parts({.valid = 0.25, .test = 0.25, .stretches = 1}, 0).empty());
}

TEST_CASE("Split: parts of a stretch are contiguous, with requested sizes") {
  for (const Index lines : {1, 7, 100, 31102})
    for (const Index stretches : {1, 3, 66}) {
      const Split split{.valid = 0.04, .test = 0.06, .stretches = stretches};
      const std::string all = parts(split, lines);
      CAPTURE(lines);
      CAPTURE(stretches);
      Index valid = 0, test = 0, ends = 0;
      for (std::size_t i = 0; i < all.size(); ++i) {
        valid += all[i] == 'v';
        test += all[i] == 'T';
        const char next = i + 1 < all.size() ? all[i + 1] : 't';
        if (all[i] == 'T' && next != 'T') {
          CHECK(next == 't');
          ++ends;
        }
      }
      CHECK(std::abs(static_cast<double>(valid) - 0.04 * static_cast<double>(lines)) <=
            0.5 * static_cast<double>(stretches));
      CHECK(std::abs(static_cast<double>(test) - 0.06 * static_cast<double>(lines)) <=
            0.5 * static_cast<double>(stretches));
      if (lines == 31102) CHECK(ends == stretches);
    }
}

TEST_CASE("Split: wrong options and lines throw") {
  const auto said = [](const Split& split, Index line = 0) { return message_of([&] { (void)split.part(line, 10); }); };
  CHECK(said({.valid = -0.1}) == "Split: valid: expected at least 0, got -0.1");
  CHECK(said({.test = -0.1}) == "Split: test: expected at least 0, got -0.1");
  CHECK(said({.valid = 0.5, .test = 0.5}) == "Split: valid + test: expected less than 1, got 1");
  CHECK(said({.stretches = 0}) == "Split: stretches: expected at least 1, got 0");
  CHECK(said({}, 10) == "Split: line: expected 0 to 9, got 10");
}
