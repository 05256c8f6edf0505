#include <gatefold/gatefold.hpp>

#include "network.hpp"

namespace studies::graph_of_tokens {

std::unique_ptr<Model> make_similarity(Base base, const Mixing& m, const Setting& s, Index vocabulary, Seed seed) {
#ifdef GATEFOLD_EXAMPLES_CUDA
  if (s.backend == "cuda") return make_similarity_on_cuda(base, m, s, vocabulary, seed);
#endif
  return make<Cpu>(base, similarity(m), s, vocabulary, seed);
}

}  // namespace studies::graph_of_tokens
