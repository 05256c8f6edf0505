#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "gatefold/core/philox.hpp"
#include "gatefold/data/vocabulary.hpp"

namespace gatefold::data {

/// Cuts a text of T tokens into B rows of C tokens, which are read in parallel. Each step reads a block: the next M
/// tokens of every row as x, and the tokens after them as target. Pass p over the text begins at column o_p:
///
///     C = ⌊T / B⌋ columns,   row b = ids[b C … (b + 1) C)                                                   (1)
///     block at column c:  x[b,m] = row b[c + m],   target[b,m] = row b[c + m + 1],   0 <= m < M             (2)
///     pass p reads c = o_p, o_p + M, … while c + M < C;   o_0 = 0,   o_p ~ U{0 … M − 1}                     (3)
///
/// The block of a step depends only on the number of the step, so a run can continue from its step number. When a pass
/// begins (Place::clear), clear the caches of past blocks, because they contain the end of the previous pass, and not
/// the tokens before the first block of the new pass. A pass without a block is skipped.
///
/// Source: papers 001 and 002, whose code restarts at a random offset.
/// @param ids         [T]  the text; the last T mod B tokens are not used
/// @param batch_size  number of rows, B
/// @param length      number of columns in a block, M
/// @param seed        seed of the random offsets o_p
struct Corpus {
  std::span<const TokenId> ids{};
  Index batch_size = 1, length = 1;
  Seed seed{};

  /// The position of the block that a step reads: the same columns of every row.
  struct Place {
    Index column = 0;
    bool clear = true;  // true: a pass over the text begins here; clear caches of earlier tokens
  };

  Index columns() const { return batch_size > 0 ? static_cast<Index>(ids.size()) / batch_size : 0; }
  /// Returns the number of blocks in the first pass over the text, which begins at column 0. An evaluation reads this
  /// pass.
  Index blocks() const {
    validate();
    return blocks_from(0);
  }

  /// Checks the options.
  /// @throws ArgumentError unless batch_size and length are at least 1 and a row has more than `length` tokens
  void validate() const {
    expect(batch_size >= 1, "Corpus", "batch_size", "at least 1", batch_size);
    expect(length >= 1, "Corpus", "length", "at least 1", length);
    expect(
        columns() > length, "Corpus", "ids",
        Joined{"at least batch_size * (length + 1) tokens, with batch_size = ", batch_size, " and length = ", length},
        ids.size());
  }

  /// Returns the position of the block that a step reads, and whether a pass over the text begins there.
  /// @throws ArgumentError unless step >= 0 and `validate` accepts the options
  /// @cost   one random number per pass before this step
  Place place(Index step) const {
    validate();
    expect(step >= 0, "Corpus", "step", "at least 0", step);
    Index offset = 0, blocks = blocks_from(offset);
    for (std::uint64_t pass = 1; step >= blocks; ++pass) {
      step -= blocks;
      offset = static_cast<Index>(uniform<double>(seed, 0, pass) * static_cast<double>(length));
      blocks = blocks_from(offset);
    }
    return {offset + step * length, step == 0};
  }

  /// Finds the block of tokens for training step `step`, and returns the position of the block. Writes the tokens of
  /// the block to `x`, and the token after each of these tokens to `target`.
  /// @param x, target  [B·M] out
  /// @throws the errors of place(); ArgumentError unless x and target have batch_size · length elements
  Place batch(Index step, std::span<Index> x, std::span<Index> target) const {
    const Place at = place(step);
    const auto expect_size = [&](const char* name, std::span<Index> out) {
      expect(static_cast<Index>(out.size()) == batch_size * length, "Corpus.batch", name,
             Joined{batch_size * length, " elements"}, out.size());
    };
    expect_size("x", x);
    expect_size("target", target);
    for (Index b = 0; b < batch_size; ++b) {
      const TokenId* from = ids.data() + b * columns() + at.column;
      std::copy_n(from, length, x.data() + b * length);
      std::copy_n(from + 1, length, target.data() + b * length);
    }
    return at;
  }

 private:
  /// Returns the number of blocks of a pass that begins at column `offset`. It is the number of columns c = offset,
  /// offset + M, … that are below C − M, with M tokens per block and C tokens per row.
  Index blocks_from(Index offset) const { return (columns() - offset - 1) / length; }
};

}  // namespace gatefold::data
