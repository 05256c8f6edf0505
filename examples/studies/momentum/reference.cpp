#include <gatefold/gatefold.hpp>

#include "layouts.hpp"

namespace studies::momentum {

std::unique_ptr<Model> make_reference(const Setting& s, Index vocabulary, const Basic& rule, Seed seed) {
#ifdef GATEFOLD_EXAMPLES_CUDA
  if (s.backend == "cuda") return make_reference_on_cuda(s, vocabulary, rule, seed);
#endif
  return reference_on<gatefold::Cpu>(s, vocabulary, rule, seed);
}

}  // namespace studies::momentum
