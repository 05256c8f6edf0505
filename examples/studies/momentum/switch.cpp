#include <gatefold/gatefold.hpp>

#include "switch.hpp"

namespace studies::momentum {

std::unique_ptr<Model> make_switch(const Setting& s, Index vocabulary, const Rule& rule, Seed seed) {
#ifdef GATEFOLD_EXAMPLES_CUDA
  if (s.backend == "cuda") return make_switch_on_cuda(s, vocabulary, rule, seed);
#endif
  return switch_on<gatefold::Cpu>(s, vocabulary, rule, seed);
}

}  // namespace studies::momentum
