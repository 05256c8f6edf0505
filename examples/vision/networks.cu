#include <gatefold/gatefold.cuh>

#include "networks.hpp"

std::unique_ptr<images::Model> images::make_model_on_cuda(const Options& o) { return make_network<Cuda>(o); }
