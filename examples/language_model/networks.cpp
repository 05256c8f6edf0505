#include <gatefold/gatefold.hpp>

#include "networks.hpp"

namespace language {

#ifndef GATEFOLD_EXAMPLES_CUDA
std::unique_ptr<Model> make_model_on_cuda(const Options& o, Index) {
  expect(false, "options", "backend", "cpu or cpu-bf16, as this program was built without CUDA", o.backend);
  return {};
}
#endif

std::unique_ptr<Model> make_model(const Options& o, Index vocabulary) {
  if (is_on_cuda(o)) return make_model_on_cuda(o, vocabulary);
  return make_network<Cpu, CpuBf16>(o, vocabulary);
}

}  // namespace language
