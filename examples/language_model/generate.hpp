#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <gatefold/core/philox.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "model.hpp"
#include "text.hpp"

namespace language {

/// Draws a token with p ∝ exp(z / temperature), but only among the most probable tokens: the fewest whose probabilities
/// sum to at least top_p. If temperature is 0, returns the most probable token.
///
/// Source: Holtzman et al. 2019, arXiv:1904.09751 (nucleus sampling).
/// @param logits  [vocabulary] z
/// @param u       a uniform random number in [0, 1), which determines the token
/// @order ties go to the lower token
inline TokenId choose(std::span<const float> logits, double temperature, double top_p, double u) {
  std::vector<TokenId> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto z = [&](TokenId id) { return static_cast<double>(logits[static_cast<std::size_t>(id)]); };
  std::stable_sort(order.begin(), order.end(), [&](TokenId a, TokenId b) { return z(a) > z(b); });
  if (temperature == 0) return order[0];
  std::vector<double> p(order.size());
  double all = 0;
  for (std::size_t i = 0; i < p.size(); ++i) all += p[i] = std::exp((z(order[i]) - z(order[0])) / temperature);
  double kept = 0;
  std::size_t count = 0;
  while (count < p.size() && (count == 0 || kept < top_p * all)) kept += p[count++];
  double sum = 0;
  for (std::size_t i = 0; i < count; ++i)
    if ((sum += p[i]) > u * kept) return order[i];
  return order[count - 1];
}

/// Generates text that continues the prompt. Each layer attends to the last `length` tokens. The keys and values of
/// previous tokens are cached, so that the model reads each token once. If the option `no_cache` is set, the model
/// reads all tokens again for each new token, which is slower and gives the same text.
inline std::string generate(Model& model, const Options& o, const Vocabulary& vocabulary) {
  std::vector<TokenId> said{vocabulary.end_of_line()};
  append(o.prompt, vocabulary, said, false);
  std::size_t read = 0;
  model.begin();
  for (Index i = 0; i < o.tokens; ++i) {
    if (o.no_cache) {
      model.begin();
      read = 0;
    }
    const auto logits = model.read_on(Ids(said.begin() + static_cast<std::ptrdiff_t>(read), said.end()));
    read = said.size();
    const double u = gatefold::uniform<double>(gatefold::Seed{o.draw}, 0, static_cast<std::uint64_t>(i));
    said.push_back(choose(logits, o.temperature, o.top_p, u));
  }
  return written(vocabulary, std::span<const TokenId>(said).subspan(1));
}

}  // namespace language
