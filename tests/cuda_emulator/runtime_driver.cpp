// The runtime's access to functions of the driver that have no function in the runtime.
#include <cuda_runtime_api.h>

#include <string>

#include "cuda_emulator/report.hpp"
#include "cuda_emulator/runtime.hpp"
#include "cuda_emulator/tensor_map.hpp"

namespace gatefold::cuda_emulator {
namespace {

cudaError_t find_driver_function(const char* symbol, void** function, unsigned version, unsigned long long flags,
                                 cudaDriverEntryPointQueryResult* status) {
  if (symbol == nullptr || function == nullptr || version > CUDART_VERSION ||
      flags > cudaEnablePerThreadDefaultStream) {
    return cudaErrorInvalidValue;
  }
  if (std::string(symbol) != "cuTensorMapEncodeTiled") {
    throw Fault("cudaGetDriverEntryPoint: " + std::string(symbol) + " is not modelled");
  }
  const bool known = version >= 12000;  // tensor maps are new in this version
  *function = known ? reinterpret_cast<void*>(&encode_tensor_map) : nullptr;
  if (status != nullptr) *status = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointVersionNotSufficent;
  return cudaSuccess;
}

}  // namespace
}  // namespace gatefold::cuda_emulator

using namespace gatefold::cuda_emulator;

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned version,
                                             unsigned long long flags, cudaDriverEntryPointQueryResult* status) {
  return runtime_call("cudaGetDriverEntryPointByVersion",
                      [&] { return find_driver_function(symbol, function, version, flags, status); });
}

cudaError_t cudaGetDriverEntryPoint(const char* symbol, void** function, unsigned long long flags,
                                    cudaDriverEntryPointQueryResult* status) {
  return runtime_call("cudaGetDriverEntryPoint",
                      [&] { return find_driver_function(symbol, function, CUDART_VERSION, flags, status); });
}
