#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <gatefold/core/error.hpp>
#include <gatefold/core/types.hpp>
#include <span>
#include <utility>
#include <vector>

namespace baseline {

using gatefold::Index;

/// Interpolated Kneser–Ney n-grams over the tokens 0 … V − 1: the baseline of the language models.
///
///     p_n(w | h) = (max(c_n(h w) − D_n, 0) + D_n t_n(h) p_{n−1}(w | h')) / c_n(h),   p_0 = 1 / V            (1)
///     c_n(h) = Σ_w c_n(h w),   t_n(h) = |{w : c_n(h w) > 0}|,   h' = h without its first token
///     c_N counts n-grams of the text; for n < N, c_n counts the different tokens before an n-gram           (2)
///     D_n = a_1 / (a_1 + 2 a_2),   a_k = number of n-grams with c_n = k;   1/2 if a_1 = 0                    (3)
///
/// A context that does not occur in the text is shortened. The text is one stream: n-grams continue across ends of
/// lines.
/// Source: Kneser and Ney 1995, with (1) in the form of Chen and Goodman 1998, "An empirical study of smoothing
/// techniques for language modeling", sec. 3.
/// @cost  The constructor does N sorts of at most T numbers for a text of T tokens. The object keeps 16 bytes for each
///   different n-gram of each order. probability() does up to 3 N binary searches
class KneserNey {
 public:
  using Id = std::int32_t;

  /// @param tokens      number of tokens of the text
  /// @param order       N, the largest number of tokens in an n-gram
  /// @param vocabulary  V, the number of different tokens
  /// @throws ArgumentError unless order >= 1, the text has at least N tokens, and N tokens fit in 63 bits
  static void validate(Index tokens, int order, Index vocabulary) {
    using gatefold::expect;
    const int most = 63 / bits_of(vocabulary);
    expect(order >= 1, "KneserNey", "order", "at least 1", order);
    expect(order <= most, "KneserNey", "order", gatefold::Joined{"at most ", most}, order);
    expect(tokens >= order, "KneserNey", "text", gatefold::Joined{"at least ", order, " tokens"}, tokens);
  }
  /// @param order       N
  /// @param vocabulary  V
  /// @throws ArgumentError if a token is not in the vocabulary. Also throws what validate() throws
  KneserNey(std::span<const Id> text, int order, Index vocabulary)
      : vocabulary_(vocabulary), bits_(bits_of(vocabulary)) {
    using gatefold::expect;
    validate(static_cast<Index>(text.size()), order, vocabulary);
    for (const Id id : text)
      expect(0 <= id && id < vocabulary, "KneserNey", "text", gatefold::Joined{"tokens below ", vocabulary}, id);
    std::vector<Key> keys;
    Key key = 0;
    for (std::size_t i = 0; i < text.size(); ++i) {
      key = ((key << bits_) | static_cast<Key>(text[i])) & mask(order);
      if (static_cast<int>(i) + 1 >= order) keys.push_back(key);
    }
    grams_.resize(static_cast<std::size_t>(order));
    for (int n = order; n >= 1; --n) {
      Grams& grams = grams_[static_cast<std::size_t>(n - 1)];
      grams = Grams(std::move(keys));
      // Removes the first token of each different n-gram. An (n−1)-gram then occurs once for each different token
      // before it.
      keys = grams.keys;
      for (Key& k : keys) k &= mask(n - 1);
    }
  }

  int order() const { return static_cast<int>(grams_.size()); }
  double discount(int n) const { return grams_[static_cast<std::size_t>(n - 1)].discount; }

  /// Returns p(next | context). Only the last N − 1 tokens of the context count.
  double probability(std::span<const Id> context, Id next) const {
    const std::size_t longest = std::min(context.size(), grams_.size() - 1);
    double p = 1 / static_cast<double>(vocabulary_);
    Key key = 0;  // the context's last n tokens
    for (std::size_t n = 0; n <= longest; ++n) {
      if (n > 0) key |= static_cast<Key>(context[context.size() - n]) << (bits_ * static_cast<int>(n - 1));
      const Grams& grams = grams_[n];
      const auto first = grams.place(key << bits_), last = grams.place((key + 1) << bits_);
      if (first == last) break;
      const double total = grams.sum(first, last), types = static_cast<double>(last - first);
      const Key gram = (key << bits_) | static_cast<Key>(next);
      const auto at = grams.place(gram);
      const double count = at < last && grams.keys[at] == gram ? grams.sum(at, at + 1) : 0;
      p = (std::max(count - grams.discount, 0.0) + grams.discount * types * p) / total;
    }
    return p;
  }

  /// Returns the mean of −log₂ p over all tokens of a text except the first. The context of a token is all tokens
  /// before it.
  double bits(std::span<const Id> text) const {
    double sum = 0;
    for (std::size_t i = 1; i < text.size(); ++i) sum -= std::log2(probability(text.first(i), text[i]));
    return sum / static_cast<double>(text.size() - 1);
  }

 private:
  /// An n-gram as one number, with its n tokens in the lowest bits. The first token has the highest bits, so that
  /// n-grams with the same context are adjacent after sorting.
  using Key = std::uint64_t;
  static int bits_of(Index vocabulary) {
    return static_cast<int>(std::bit_width(static_cast<std::uint64_t>(std::max<Index>(vocabulary - 1, 1))));
  }
  Key mask(int tokens) const { return (Key(1) << (bits_ * tokens)) - 1; }

  struct Grams {
    std::vector<Key> keys{};              // ascending
    std::vector<std::uint64_t> before{};  // [keys + 1] total count of all keys before each key
    double discount = 0;

    Grams() = default;
    /// Sorts and counts the n-grams in `all`, which can be in any order and occur repeatedly.
    explicit Grams(std::vector<Key> all) : keys(std::move(all)) {
      std::sort(keys.begin(), keys.end());
      before.push_back(0);
      std::size_t different = 0;
      double once = 0, twice = 0;
      for (std::size_t i = 0, next; i < keys.size(); i = next) {
        for (next = i; next < keys.size() && keys[next] == keys[i];) ++next;
        keys[different++] = keys[i];
        before.push_back(next);
        once += next - i == 1;
        twice += next - i == 2;
      }
      keys.resize(different);
      keys.shrink_to_fit();
      before.shrink_to_fit();
      discount = once > 0 ? once / (once + 2 * twice) : 0.5;
    }
    std::size_t place(Key key) const {
      return static_cast<std::size_t>(std::lower_bound(keys.begin(), keys.end(), key) - keys.begin());
    }
    double sum(std::size_t first, std::size_t last) const { return static_cast<double>(before[last] - before[first]); }
  };

  Index vocabulary_;
  int bits_;
  std::vector<Grams> grams_{};  // [N] the n-grams of 1, …, N tokens
};

}  // namespace baseline
