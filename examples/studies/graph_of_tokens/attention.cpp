#include <gatefold/gatefold.hpp>

#include "network.hpp"

namespace studies::graph_of_tokens {

std::unique_ptr<Model> make_attention(const Parts& parts, const Setting& s, Index vocabulary, Seed seed) {
#ifdef GATEFOLD_EXAMPLES_CUDA
  if (s.backend == "cuda") return make_attention_on_cuda(parts, s, vocabulary, seed);
#endif
  return make<Cpu>(parts, attention(parts.mixing), s, vocabulary, seed);
}

}  // namespace studies::graph_of_tokens
