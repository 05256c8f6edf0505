#include "network.hpp"

namespace studies::graph_of_tokens {

std::unique_ptr<Model> make_independent(Base base, const Mixing&, const Setting& s, Index vocabulary, Seed seed) {
  return make(base, gatefold::Independent{}, s, vocabulary, seed);
}

}  // namespace studies::graph_of_tokens
