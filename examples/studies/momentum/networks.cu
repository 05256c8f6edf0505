#include <gatefold/gatefold.cuh>

#include "layouts.hpp"
#include "switch.hpp"

namespace studies::momentum {

std::unique_ptr<Model> make_switch_on_cuda(const Setting& s, Index vocabulary, const Rule& rule, Seed seed) {
  return switch_on<gatefold::Cuda>(s, vocabulary, rule, seed);
}
std::unique_ptr<Model> make_glam_on_cuda(const Setting& s, Index vocabulary, const Basic& rule, Seed seed) {
  return glam_on<gatefold::Cuda>(s, vocabulary, rule, seed);
}
std::unique_ptr<Model> make_reference_on_cuda(const Setting& s, Index vocabulary, const Basic& rule, Seed seed) {
  return reference_on<gatefold::Cuda>(s, vocabulary, rule, seed);
}

}  // namespace studies::momentum
