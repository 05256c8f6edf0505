#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <gatefold/core/error.hpp>
#include <span>
#include <vector>

#include "model.hpp"
#include "text.hpp"

namespace language {

/// Returns log p of the token `next`, with p the softmax of the logits. Computes in double.
inline double log_probability(std::span<const float> logits, TokenId next) {
  const double top = *std::max_element(logits.begin(), logits.end());
  double total = 0;
  for (const float z : logits) total += std::exp(static_cast<double>(z) - top);
  return static_cast<double>(logits[static_cast<std::size_t>(next)]) - top - std::log(total);
}

/// Throws ArgumentError unless a text is longer than a sequence.
/// @param name  name of the text in the error message
inline void expect_tokens(const Options& o, const char* name, std::span<const TokenId> text) {
  gatefold::expect(static_cast<Index>(text.size()) > o.length, "text", name,
                   gatefold::Joined{"more than length = ", o.length, " tokens"}, text.size());
}

/// Returns log p of each token of a text except the first, given the tokens before it. The n-gram baseline (ngram.hpp)
/// is evaluated on the same tokens.
///
/// Sequences overlap by half their length. Each token, except near the beginning, is therefore predicted from at least
/// half a sequence.
/// @return [T − 1] the natural logarithms, for a text of T tokens
inline std::vector<double> log_probabilities(Model& model, const Options& o, const char* name,
                                             std::span<const TokenId> text) {
  expect_tokens(o, name, text);
  const auto last = static_cast<Index>(text.size()) - 1;  // number of tokens that are predicted
  std::vector<double> found;
  std::vector<Index> begins;
  Ids x;
  const auto flush = [&] {
    model.read(x);
    for (std::size_t w = 0; w < begins.size(); ++w) {
      const Index from = static_cast<Index>(found.size()) - begins[w], count = o.length - from;
      const std::span<const float> logits = model.logits(static_cast<Index>(w) * o.length + from, count);
      const std::size_t width = logits.size() / static_cast<std::size_t>(count);
      for (std::size_t n = 0; n < static_cast<std::size_t>(count); ++n)
        found.push_back(log_probability(logits.subspan(n * width, width), text[found.size() + 1]));
    }
    begins.clear();
    x.clear();
  };
  const Index stride = std::max<Index>(1, o.length / 2);
  for (Index begin = 0;; begin = std::min(begin + stride, last - o.length)) {
    begins.push_back(begin);
    x.insert(x.end(), text.begin() + begin, text.begin() + begin + o.length);
    const bool done = begin + o.length == last;
    if (done || static_cast<Index>(begins.size()) == o.batch) flush();
    if (done) return found;
  }
}

/// Returns the mean of −log₂ p, in bits per token, from log p of each token.
inline double bits(const std::vector<double>& log_probabilities) {
  double sum = 0;
  for (const double log_p : log_probabilities) sum -= log_p;
  return sum / static_cast<double>(log_probabilities.size()) / std::log(2.0);
}

}  // namespace language
