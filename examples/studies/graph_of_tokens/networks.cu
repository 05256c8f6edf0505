#include <gatefold/gatefold.cuh>

#include "network.hpp"

namespace studies::graph_of_tokens {

std::unique_ptr<Model> make_independent_on_cuda(Base base, const Mixing& m, const Setting& s, Index vocabulary,
                                                Seed seed) {
  return make<Cuda>(base, independent(m), s, vocabulary, seed);
}
std::unique_ptr<Model> make_similarity_on_cuda(Base base, const Mixing& m, const Setting& s, Index vocabulary,
                                               Seed seed) {
  return make<Cuda>(base, similarity(m), s, vocabulary, seed);
}
std::unique_ptr<Model> make_attention_on_cuda(Base base, const Mixing& m, const Setting& s, Index vocabulary,
                                              Seed seed) {
  return make<Cuda>(base, attention(m), s, vocabulary, seed);
}

}  // namespace studies::graph_of_tokens
