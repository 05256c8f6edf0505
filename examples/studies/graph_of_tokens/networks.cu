#include <gatefold/gatefold.cuh>

#include "network.hpp"

namespace studies::graph_of_tokens {

std::unique_ptr<Model> make_independent_on_cuda(const Parts& parts, const Setting& s, Index vocabulary, Seed seed) {
  return make<Cuda>(parts, independent(parts.mixing), s, vocabulary, seed);
}
std::unique_ptr<Model> make_similarity_on_cuda(const Parts& parts, const Setting& s, Index vocabulary, Seed seed) {
  return make<Cuda>(parts, similarity(parts.mixing), s, vocabulary, seed);
}
std::unique_ptr<Model> make_attention_on_cuda(const Parts& parts, const Setting& s, Index vocabulary, Seed seed) {
  return make<Cuda>(parts, attention(parts.mixing), s, vocabulary, seed);
}

}  // namespace studies::graph_of_tokens
