#include "network.hpp"

namespace studies::graph_of_tokens {

std::unique_ptr<Model> make_similarity(Base base, const Mixing& m, const Setting& s, Index vocabulary, Seed seed) {
  return make(base, gatefold::TokenSimilarity{.tau = m.tau, .causal = m.causal, .only_confident = m.only_confident}, s,
              vocabulary, seed);
}

}  // namespace studies::graph_of_tokens
