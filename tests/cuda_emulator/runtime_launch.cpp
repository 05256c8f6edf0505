// The runtime's launches: the call configuration of <<<...>>>, the limits of the device, attributes of kernels.
#include <cuda_occupancy.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "cuda_emulator/device.hpp"
#include "cuda_emulator/fat_binary.hpp"
#include "cuda_emulator/launch.hpp"
#include "cuda_emulator/report.hpp"
#include "cuda_emulator/runtime.hpp"

namespace gatefold::cuda_emulator {
namespace {

struct Configuration {
  dim3 grid, block;
  std::size_t shared_bytes;
  cudaStream_t stream;
};
thread_local std::vector<Configuration> configurations;

Extent extent(const dim3& size) { return {size.x, size.y, size.z}; }

bool within(const Extent& size, const Extent& limit) {
  return size.volume() != 0 && size.x <= limit.x && size.y <= limit.y && size.z <= limit.z;
}

// Returns cudaErrorInvalidValue for all impossible launches, as the runtime of CUDA 13 does (observed on an H100).
cudaError_t check(Kernel& kernel, const Launch& launch) {
  const Device model = device();
  const int dynamic = kernel.dynamic_shared_limit[launch.device];
  const bool raised = dynamic > static_cast<int>(model.shared_per_block);
  const std::size_t limit = raised ? model.shared_per_block_optin : model.shared_per_block;
  const int threads = std::min(model.threads_per_block, kernel.function->max_threads);
  const bool possible = within(launch.grid, model.grid_limit) && within(launch.block, model.block_limit) &&
                        launch.block.volume() <= static_cast<std::uint64_t>(threads) &&
                        launch.shared_bytes <= static_cast<std::size_t>(dynamic) &&
                        launch.shared_bytes + kernel.function->shared_bytes <= limit;
  return possible ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t launch_kernel(const void* host, const Configuration& configuration, void** arguments) {
  Kernel* kernel = nullptr;
  if (const auto error = find_kernel(host, kernel)) return error;
  if (const auto error = expect_current_device(configuration.stream)) return error;
  Launch work{
      extent(configuration.grid), extent(configuration.block), configuration.shared_bytes, {}, current_device()};
  if (const auto error = check(*kernel, work)) return error;
  const Function& function = *kernel->function;
  work.parameters.resize(function.parameters_bytes);
  for (std::size_t i = 0; i < function.parameters.size(); ++i) {
    const Parameter& parameter = function.parameters[i];
    std::memcpy(work.parameters.data() + parameter.offset, arguments[i], parameter.size);
  }
  return submit(configuration.stream, [&function, work = std::move(work)] { launch(function, work); });
}

cudaError_t occupancy(int* blocks, const void* host, int threads, std::size_t shared_bytes) {
  Kernel* kernel = nullptr;
  if (const auto error = find_kernel(host, kernel)) return error;
  const Device model = device();
  cudaOccDeviceProp properties;
  properties.computeMajor = model.major;
  properties.computeMinor = model.minor;
  properties.maxThreadsPerBlock = model.threads_per_block;
  properties.maxThreadsPerMultiprocessor = model.threads_per_multiprocessor;
  properties.regsPerBlock = properties.regsPerMultiprocessor = model.registers;
  properties.warpSize = warp_size;
  properties.sharedMemPerBlock = model.shared_per_block;
  properties.sharedMemPerMultiprocessor = model.shared_per_multiprocessor;
  properties.numSms = model.multiprocessors;
  properties.sharedMemPerBlockOptin = model.shared_per_block_optin;
  properties.reservedSharedMemPerBlock = model.shared_reserved_per_block;
  cudaOccFuncAttributes attributes;
  attributes.maxThreadsPerBlock = kernel->function->max_threads;
  attributes.numRegs = assumed_registers;
  attributes.sharedSizeBytes = kernel->function->shared_bytes;
  attributes.partitionedGCConfig = PARTITIONED_GC_OFF;
  attributes.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
  attributes.maxDynamicSharedSizeBytes = static_cast<std::size_t>(kernel->dynamic_shared_limit[current_device()]);
  const cudaOccDeviceState state;
  cudaOccResult result;
  if (cudaOccMaxActiveBlocksPerMultiprocessor(&result, &properties, &attributes, &state, threads, shared_bytes) !=
      CUDA_OCC_SUCCESS) {
    return cudaErrorInvalidValue;
  }
  *blocks = result.activeBlocksPerMultiprocessor;
  return cudaSuccess;
}

// A kernel's handle is the address of its host stub.
const void* stub_of(cudaKernel_t kernel) { return reinterpret_cast<const void*>(kernel); }

}  // namespace
}  // namespace gatefold::cuda_emulator

using namespace gatefold::cuda_emulator;

extern "C" {

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, std::size_t shared_bytes, cudaStream_t stream) {
  configurations.push_back({grid, block, shared_bytes, stream});
  return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, std::size_t* shared_bytes, void* stream) {
  if (configurations.empty()) return remember(cudaErrorMissingConfiguration);
  const Configuration& top = configurations.back();
  *grid = top.grid;
  *block = top.block;
  *shared_bytes = top.shared_bytes;
  *static_cast<cudaStream_t*>(stream) = top.stream;
  configurations.pop_back();
  return cudaSuccess;
}

cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* host) {
  *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(host));
  return cudaSuccess;
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments, std::size_t shared_bytes,
                               cudaStream_t stream) {
  return cudaLaunchKernel(stub_of(kernel), grid, block, arguments, shared_bytes, stream);
}

}  // extern "C"

cudaError_t cudaLaunchKernel(const void* host, dim3 grid, dim3 block, void** arguments, size_t shared_bytes,
                             cudaStream_t stream) {
  return runtime_call("cudaLaunchKernel", [&] {
    return launch_kernel(host, {grid, block, shared_bytes, stream}, arguments);
  });
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* host, void** arguments) {
  return runtime_call("cudaLaunchKernel", [&] {
    for (unsigned i = 0; i < config->numAttrs; ++i) {
      const cudaLaunchAttributeID id = config->attrs[i].id;
      // Programmatic launches may start before the previous launch has ended. Here launches run one by one, so there is
      // no difference.
      if (id == cudaLaunchAttributeIgnore || id == cudaLaunchAttributeProgrammaticStreamSerialization) continue;
      throw Fault("cudaLaunchKernelEx: launch attribute " + std::to_string(id) + " is not modelled");
    }
    return launch_kernel(host, {config->gridDim, config->blockDim, config->dynamicSmemBytes, config->stream},
                         arguments);
  });
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* host) {
  return runtime_call("cudaFuncGetAttributes", [&] {
    Kernel* kernel = nullptr;
    if (const auto error = find_kernel(host, kernel)) return error;
    *attributes = {};
    attributes->sharedSizeBytes = kernel->function->shared_bytes;
    attributes->localSizeBytes = kernel->function->local_bytes;
    attributes->maxThreadsPerBlock = kernel->function->max_threads;
    attributes->numRegs = assumed_registers;
    attributes->ptxVersion = kernel->compute_capability;
    attributes->binaryVersion = options().compute_capability;  // the driver compiles PTX for the device it finds
    attributes->maxDynamicSharedSizeBytes = kernel->dynamic_shared_limit[current_device()];
    return cudaSuccess;
  });
}

cudaError_t cudaFuncSetAttribute(const void* host, cudaFuncAttribute attribute, int value) {
  return runtime_call("cudaFuncSetAttribute", [&] {
    Kernel* kernel = nullptr;
    if (const auto error = find_kernel(host, kernel)) return error;
    if (attribute == cudaFuncAttributePreferredSharedMemoryCarveout) return cudaSuccess;
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 ||
        static_cast<std::size_t>(value) + kernel->function->shared_bytes > device().shared_per_block_optin) {
      return cudaErrorInvalidValue;
    }
    kernel->dynamic_shared_limit[current_device()] = value;
    return cudaSuccess;
  });
}

cudaError_t cudaFuncSetCacheConfig(const void* host, cudaFuncCache) {
  return runtime_call("cudaFuncSetCacheConfig", [&] {
    Kernel* kernel = nullptr;
    return find_kernel(host, kernel);
  });
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void* host, int threads,
                                                                   size_t shared_bytes, unsigned) {
  return runtime_call("cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags",
                      [&] { return occupancy(blocks, host, threads, shared_bytes); });
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* host, int threads,
                                                          size_t shared_bytes) {
  return runtime_call("cudaOccupancyMaxActiveBlocksPerMultiprocessor",
                      [&] { return occupancy(blocks, host, threads, shared_bytes); });
}
