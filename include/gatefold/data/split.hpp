#pragma once

#include <cmath>

#include "gatefold/core/error.hpp"
#include "gatefold/core/types.hpp"

namespace gatefold::data {

enum class Part { train, valid, test };

/// Splits the lines of a text into a training, a validation and a test part.
///
/// The text is cut into `stretches` pieces of consecutive lines, of sizes as equal as possible. Each piece ends with
/// its share of validation lines, followed by its share of test lines. With one piece, the test part is the end of the
/// text. With several pieces, it has passages from everywhere in the text.
/// @param valid, test  shares of the lines, rounded in each piece
/// @throws ArgumentError unless valid and test are at least 0, their sum is less than 1, and stretches >= 1
struct Split {
  double valid = 0.05, test = 0.05;
  Index stretches = 1;

  void validate() const {
    expect(valid >= 0, "Split", "valid", "at least 0", valid);
    expect(test >= 0, "Split", "test", "at least 0", test);
    expect(valid + test < 1, "Split", "valid + test", "less than 1", valid + test);
    expect(stretches >= 1, "Split", "stretches", "at least 1", stretches);
  }

  /// Returns the part (training, validation or test) to which line `line` of a text belongs. Its lines are numbered 0 …
  /// lines − 1.
  Part part(Index line, Index lines) const {
    validate();
    expect(0 <= line && line < lines, "Split", "line", Joined{"0 to ", lines - 1}, line);
    // Of n lines in S pieces, piece s has the lines ⌊s n / S⌋ … ⌊(s + 1) n / S⌋ − 1.
    const Index s = (stretches * (line + 1) - 1) / lines, end = (s + 1) * lines / stretches;
    const auto share = [&](double of) {
      return static_cast<Index>(std::llround(of * static_cast<double>(end - s * lines / stretches)));
    };
    const Index to_end = end - line;  // lines from this one to the end of the piece; 1 for its last line
    return to_end <= share(test) ? Part::test : to_end <= share(test) + share(valid) ? Part::valid : Part::train;
  }
};

}  // namespace gatefold::data
