#include <gatefold/gatefold.hpp>

#include "networks.hpp"

namespace images {

// Each function is instantiated in a separate file, so that they compile in parallel.
extern template std::unique_ptr<Model> make_vmoe<Cpu>(const Options&);
extern template std::unique_ptr<Model> make_robust<Cpu>(const Options&);
extern template std::unique_ptr<Model> make_similar<Cpu>(const Options&);
extern template std::unique_ptr<Model> make_attending<Cpu>(const Options&);
extern template std::unique_ptr<Model> make_soft<Cpu>(const Options&);

#ifndef GATEFOLD_EXAMPLES_CUDA
std::unique_ptr<Model> make_model_on_cuda(const Options& o) {
  expect(false, "options", "backend", "cpu, as this program was built without CUDA", o.backend);
  return {};
}
#endif

std::unique_ptr<Model> make_model(const Options& o) {
  if (o.backend == "cuda") return make_model_on_cuda(o);
  return make_network<Cpu>(o);
}

}  // namespace images
