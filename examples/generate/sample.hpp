#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <gatefold/core/error.hpp>
#include <gatefold/core/philox.hpp>
#include <gatefold/core/types.hpp>
#include <numeric>
#include <span>
#include <vector>

namespace generating {

using namespace gatefold;

/// Options of sample.
struct Sampling {
  double temperature = 0;  // 0: always the most probable token
  Index top_k = 0;         // number of most probable tokens that can be drawn; 0: all
  double top_p = 1;        // only the fewest tokens whose probabilities sum to at least top_p can be drawn
  std::uint64_t seed = 1;
};

/// Draws one token from softmax(z / temperature), but only among the top_k largest logits z, and of these only among
/// the fewest whose probabilities sum to at least top_p. The random number depends only on the seed and on `position`,
/// the number of the drawn token. Therefore the same seed and the same logits give the same tokens.
///
/// Source: Holtzman et al. 2019, arXiv:1904.09751 (top_p). Hugging Face's library transformers applies temperature,
/// top_k and top_p in the same order.
/// @param logits  [vocabulary] z
/// @throws ArgumentError if there are no logits, a logit is NaN, or the largest logit is not finite
/// @order  equal logits: the lower token counts as more probable
inline Index sample(std::span<const float> logits, const Sampling& options, Index position) {
  std::vector<Index> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto z = [&](Index token) { return static_cast<double>(logits[static_cast<std::size_t>(token)]); };
  for (const Index token : order) expect(!std::isnan(z(token)), "sample", "logits", "numbers", "NaN");
  const auto before = [&](Index a, Index b) { return z(a) != z(b) ? z(a) > z(b) : a < b; };
  const auto best = std::min_element(order.begin(), order.end(), before);
  expect(best != order.end() && std::isfinite(z(*best)), "sample", "logits", "a finite largest logit",
         best == order.end() ? "no logits" : "an infinite one");
  if (options.temperature == 0) return *best;
  const Index all = static_cast<Index>(order.size()), k = options.top_k > 0 ? std::min(options.top_k, all) : all;
  std::partial_sort(order.begin(), order.begin() + k, order.end(), before);
  std::vector<double> p(static_cast<std::size_t>(k));  // proportional to the probabilities
  for (std::size_t i = 0; i < p.size(); ++i) p[i] = std::exp((z(order[i]) - z(order[0])) / options.temperature);
  const double enough = options.top_p * std::accumulate(p.begin(), p.end(), 0.0);
  double kept = p[0];
  std::size_t count = 1, i = 0;
  while (count < p.size() && kept < enough) kept += p[count++];
  double rest = kept * uniform<double>(Seed{options.seed}, 0, static_cast<std::uint64_t>(position));
  while (i + 1 < count && rest >= p[i]) rest -= p[i++];
  return order[i];
}

}  // namespace generating
