#include "network.hpp"

namespace studies::graph_of_tokens {

std::unique_ptr<Model> make_attention(Base base, const Mixing& m, const Setting& s, Index vocabulary, Seed seed) {
  return make(base, gatefold::AttentionPosterior{.sigma = m.sigma, .only_confident = m.only_confident}, s, vocabulary,
              seed);
}

}  // namespace studies::graph_of_tokens
