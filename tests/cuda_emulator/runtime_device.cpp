// The devices of the runtime, which are all equal: their number, the current device, and their attributes.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <string>

#include "cuda_emulator/device.hpp"
#include "cuda_emulator/report.hpp"
#include "cuda_emulator/runtime.hpp"

namespace gatefold::cuda_emulator {
namespace {

// A row of the table "Technical specifications per compute capability" of the CUDA programming guide.
struct Row {
  int compute_capability, shared_kilobytes, threads, blocks;
};
constexpr Row rows[] = {
    {75, 64, 1024, 16},  {80, 164, 2048, 32},  {86, 100, 1536, 16},  {89, 100, 1536, 24},
    {90, 228, 2048, 32}, {100, 228, 2048, 32}, {120, 100, 1536, 24},
};

thread_local int current = 0;

cudaError_t check_device(int device) {
  return device >= 0 && device < options().devices ? cudaSuccess : cudaErrorInvalidDevice;
}

int attribute_of(const Device& device, cudaDeviceAttr attribute) {
  switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor:
      return device.major;
    case cudaDevAttrComputeCapabilityMinor:
      return device.minor;
    case cudaDevAttrMultiProcessorCount:
      return device.multiprocessors;
    case cudaDevAttrMaxThreadsPerBlock:
      return device.threads_per_block;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
      return device.threads_per_multiprocessor;
    case cudaDevAttrMaxBlocksPerMultiprocessor:
      return device.blocks_per_multiprocessor;
    case cudaDevAttrMaxBlockDimX:
      return static_cast<int>(device.block_limit.x);
    case cudaDevAttrMaxBlockDimY:
      return static_cast<int>(device.block_limit.y);
    case cudaDevAttrMaxBlockDimZ:
      return static_cast<int>(device.block_limit.z);
    case cudaDevAttrMaxGridDimX:
      return static_cast<int>(device.grid_limit.x);
    case cudaDevAttrMaxGridDimY:
      return static_cast<int>(device.grid_limit.y);
    case cudaDevAttrMaxGridDimZ:
      return static_cast<int>(device.grid_limit.z);
    case cudaDevAttrMaxSharedMemoryPerBlock:
      return static_cast<int>(device.shared_per_block);
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      return static_cast<int>(device.shared_per_block_optin);
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      return static_cast<int>(device.shared_per_multiprocessor);
    case cudaDevAttrReservedSharedMemoryPerBlock:
      return static_cast<int>(device.shared_reserved_per_block);
    case cudaDevAttrMaxRegistersPerBlock:
    case cudaDevAttrMaxRegistersPerMultiprocessor:
      return device.registers;
    case cudaDevAttrWarpSize:
      return warp_size;
    case cudaDevAttrTotalConstantMemory:
      return 64 * 1024;
    case cudaDevAttrL2CacheSize:
      return 4 * 1024 * 1024;
    case cudaDevAttrClockRate:
      return 1000000;
    case cudaDevAttrUnifiedAddressing:
    case cudaDevAttrConcurrentKernels:
    case cudaDevAttrComputePreemptionSupported:
      return 1;
    case cudaDevAttrIntegrated:
    case cudaDevAttrManagedMemory:
    case cudaDevAttrPageableMemoryAccess:
    case cudaDevAttrCooperativeLaunch:
    case cudaDevAttrMemoryPoolsSupported:
    case cudaDevAttrClusterLaunch:
      return 0;
    default:
      throw Fault("cudaDeviceGetAttribute: attribute " + std::to_string(attribute) + " is not modelled");
  }
}

}  // namespace

int& current_device() { return current; }

cudaError_t expect_current_device(cudaStream_t stream) {
  return device_of(stream) == current ? cudaSuccess : cudaErrorInvalidResourceHandle;
}

Device device() {
  const int wanted = options().compute_capability;
  const auto* row = std::find_if(std::begin(rows), std::end(rows),
                                 [&](const Row& candidate) { return candidate.compute_capability == wanted; });
  if (row == std::end(rows)) {
    throw Fault("compute capability: expected 75, 80, 86, 89, 90, 100 or 120, got " + std::to_string(wanted));
  }
  Device result;
  result.major = wanted / 10;
  result.minor = wanted % 10;
  result.shared_reserved_per_block = wanted >= 80 ? 1024 : 0;
  result.shared_per_multiprocessor = static_cast<std::size_t>(row->shared_kilobytes) * 1024;
  result.shared_per_block_optin = result.shared_per_multiprocessor - result.shared_reserved_per_block;
  result.threads_per_multiprocessor = row->threads;
  result.blocks_per_multiprocessor = row->blocks;
  return result;
}

}  // namespace gatefold::cuda_emulator

using namespace gatefold::cuda_emulator;

cudaError_t cudaGetDeviceCount(int* count) {
  return runtime_call("cudaGetDeviceCount", [&] {
    *count = options().devices;
    return cudaSuccess;
  });
}

cudaError_t cudaGetDevice(int* device) {
  return runtime_call("cudaGetDevice", [&] {
    *device = current_device();
    return cudaSuccess;
  });
}

cudaError_t cudaSetDevice(int device) {
  return runtime_call("cudaSetDevice", [&] {
    const cudaError_t error = check_device(device);
    if (error == cudaSuccess) current_device() = device;
    return error;
  });
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int index) {
  return runtime_call("cudaDeviceGetAttribute", [&] {
    if (const auto error = check_device(index)) return error;
    *value = attribute_of(device(), attribute);
    return cudaSuccess;
  });
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int index) {
  return runtime_call("cudaGetDeviceProperties", [&] {
    if (const auto error = check_device(index)) return error;
    const Device model = device();
    *properties = {};
    std::snprintf(properties->name, sizeof properties->name, "gatefold emulator sm_%d%d", model.major, model.minor);
    properties->major = model.major;
    properties->minor = model.minor;
    properties->multiProcessorCount = model.multiprocessors;
    properties->warpSize = warp_size;
    properties->maxThreadsPerBlock = model.threads_per_block;
    properties->maxThreadsPerMultiProcessor = model.threads_per_multiprocessor;
    properties->maxBlocksPerMultiProcessor = model.blocks_per_multiprocessor;
    properties->sharedMemPerBlock = model.shared_per_block;
    properties->sharedMemPerBlockOptin = model.shared_per_block_optin;
    properties->sharedMemPerMultiprocessor = model.shared_per_multiprocessor;
    properties->reservedSharedMemPerBlock = model.shared_reserved_per_block;
    properties->regsPerBlock = properties->regsPerMultiprocessor = model.registers;
    properties->unifiedAddressing = 1;
    const auto store = [](int* to, const Extent& from) {
      to[0] = static_cast<int>(from.x);
      to[1] = static_cast<int>(from.y);
      to[2] = static_cast<int>(from.z);
    };
    store(properties->maxThreadsDim, model.block_limit);
    store(properties->maxGridSize, model.grid_limit);
    properties->totalGlobalMem = model.memory_bytes;
    return cudaSuccess;
  });
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  return runtime_call("cudaRuntimeGetVersion", [&] {
    *version = CUDART_VERSION;
    return cudaSuccess;
  });
}

cudaError_t cudaDriverGetVersion(int* version) {
  return runtime_call("cudaDriverGetVersion", [&] {
    *version = CUDART_VERSION;
    return cudaSuccess;
  });
}
