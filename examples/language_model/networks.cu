#include <gatefold/gatefold.cuh>

#include "networks.hpp"

std::unique_ptr<language::Model> language::make_model_on_cuda(const Options& o, Index vocabulary) {
  return make_network<Cuda, CudaBf16>(o, vocabulary);
}
