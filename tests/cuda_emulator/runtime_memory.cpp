// The runtime's memory: allocations, pinned host memory, copies and fills.
#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "cuda_emulator/device.hpp"
#include "cuda_emulator/fat_binary.hpp"
#include "cuda_emulator/memory.hpp"
#include "cuda_emulator/report.hpp"
#include "cuda_emulator/runtime.hpp"

namespace gatefold::cuda_emulator {
namespace {

// Host memory that the device may access, by its first address. It was allocated here, or its owner registered it.
struct Pinned {
  std::size_t bytes = 0;
  std::unique_ptr<char[]> owned;
};
std::map<const char*, Pinned>& pinned() {
  static auto& table = *new std::map<const char*, Pinned>;
  return table;
}

bool is_pinned(const void* pointer, std::size_t bytes) {
  const auto* address = static_cast<const char*>(pointer);
  auto after = pinned().upper_bound(address);
  if (after == pinned().begin()) return false;
  const auto& [base, memory] = *--after;
  return static_cast<std::size_t>(address - base) + bytes <= memory.bytes;
}

bool is_device(const void* pointer, std::size_t bytes) {
  return Memory::device().contains(pointer, bytes) && !is_pinned(pointer, 1);
}

enum class Side { host, device };

Side side_of(const void* pointer) { return is_device(pointer, 1) ? Side::device : Side::host; }

// Checks one end of a copy. CUDA refuses device memory that does not exist. If the kind of the copy says host, but the
// pointer is a device pointer, CUDA would copy from or to the device; here, this is a fault.
cudaError_t check_end(const void* pointer, std::size_t bytes, Side side, const char* end) {
  if (side == Side::device) return is_device(pointer, bytes) ? cudaSuccess : cudaErrorInvalidValue;
  if (!pointer) return cudaErrorInvalidValue;
  if (side_of(pointer) == Side::host) return cudaSuccess;
  throw Fault(std::string("copy: expected a ") + end + " on the host, as its kind says, got the device address " +
              hexadecimal(reinterpret_cast<std::uintptr_t>(pointer)));
}

struct Copy {
  void* to;
  const void* from;
  std::size_t bytes;
  cudaMemcpyKind kind;

  Side target() const {
    if (kind == cudaMemcpyDefault) return side_of(to);
    return kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice ? Side::device : Side::host;
  }
  Side source() const {
    if (kind == cudaMemcpyDefault) return side_of(from);
    return kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice ? Side::device : Side::host;
  }
  cudaError_t check() const {
    if (kind < cudaMemcpyHostToHost || kind > cudaMemcpyDefault) return cudaErrorInvalidMemcpyDirection;
    if (const auto error = check_end(to, bytes, target(), "target")) return error;
    if (const auto error = check_end(from, bytes, source(), "source")) return error;
    const auto begin = reinterpret_cast<std::uintptr_t>(to), other = reinterpret_cast<std::uintptr_t>(from);
    if (begin < other + bytes && other < begin + bytes) {
      throw Fault("copy: expected ranges that do not overlap, got " + std::to_string(bytes) + " bytes from " +
                  hexadecimal(other) + " to " + hexadecimal(begin));
    }
    return cudaSuccess;
  }
  // Returns true if a host end of the copy is not pinned. Such a copy cannot be captured, because it accesses the host
  // memory during the call, but a graph would access this memory each time it runs.
  bool pageable() const {
    return (target() == Side::host && !is_pinned(to, bytes)) || (source() == Side::host && !is_pinned(from, bytes));
  }
};

// Checks the memory of an operation when it runs, because it may have been freed since a graph recorded the operation.
template <class Work>
void run_recorded(const char* what, const Work& work) {
  if (const cudaError_t error = work.check()) {
    throw Fault(std::string(what) + ": its memory is not alive any more: " + cudaGetErrorString(error));
  }
}

cudaError_t copy(const Copy& work, cudaStream_t stream) {
  if (work.bytes == 0) return cudaSuccess;
  if (const cudaError_t error = work.check()) return error;
  if (work.pageable() && is_capturing(stream)) return refused_while_capturing();
  return submit(stream, [work] {
    run_recorded("copy", work);
    std::memcpy(work.to, work.from, work.bytes);
  });
}

// A fill. Its memory must belong to the device of its stream, because streams of other devices would not wait for it.
struct Fill {
  void* at;
  int value;
  std::size_t bytes;
  int device;
  cudaError_t check() const {
    if (!is_device(at, bytes)) return cudaErrorInvalidValue;
    if (Memory::device().contains(at, bytes, device)) return cudaSuccess;
    throw Fault("fill: expected memory of device " + std::to_string(device) + ", whose stream it is in, got " +
                hexadecimal(reinterpret_cast<std::uintptr_t>(at)) + " of device " +
                std::to_string(Memory::device().device_of(at)));
  }
};

cudaError_t fill(const Fill& work, cudaStream_t stream) {
  if (work.bytes == 0) return cudaSuccess;
  if (const cudaError_t error = expect_current_device(stream)) return error;
  if (const cudaError_t error = work.check()) return error;
  return submit(stream, [work] {
    run_recorded("fill", work);
    std::memset(work.at, work.value, work.bytes);
  });
}

cudaError_t allocate(void** pointer, std::size_t bytes, int of) {
  if (!pointer) return cudaErrorInvalidValue;
  *pointer = nullptr;
  if (bytes == 0) return cudaSuccess;
  if (bytes > device().memory_bytes) return cudaErrorMemoryAllocation;
  *pointer = Memory::device().allocate(bytes, of);
  return *pointer ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t release(void* pointer) {
  return !pointer || (is_device(pointer, 1) && Memory::device().release(pointer)) ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t pin(const char* base, Pinned memory) {
  Memory::device().add_global(const_cast<char*>(base), memory.bytes);
  pinned().emplace(base, std::move(memory));
  return cudaSuccess;
}

cudaError_t unpin(const void* base, bool owned, cudaError_t unknown) {
  const auto found = pinned().find(static_cast<const char*>(base));
  if (found == pinned().end() || (found->second.owned != nullptr) != owned) return unknown;
  Memory::device().remove_global(const_cast<void*>(base));
  pinned().erase(found);
  return cudaSuccess;
}

cudaError_t allocate_pinned(void** pointer, std::size_t bytes) {
  if (const auto error = refused_while_capturing()) return error;
  if (!pointer) return cudaErrorInvalidValue;
  *pointer = nullptr;
  if (bytes == 0) return cudaSuccess;
  auto owned = std::make_unique<char[]>(bytes);
  *pointer = owned.get();
  return pin(static_cast<char*>(*pointer), {bytes, std::move(owned)});
}

// Finds the part of a variable that a copy to or from a symbol accesses.
cudaError_t find_part(const void* symbol, std::size_t bytes, std::size_t offset, std::span<char>& part) {
  std::span<char> whole;
  if (const auto error = find_variable(symbol, whole)) return error;
  if (offset > whole.size() || bytes > whole.size() - offset) return cudaErrorInvalidValue;
  part = whole.subspan(offset, bytes);
  return cudaSuccess;
}

cudaError_t copy_to_symbol(const void* symbol, const void* from, std::size_t bytes, std::size_t offset,
                           cudaMemcpyKind kind, cudaStream_t stream) {
  std::span<char> part;
  if (const auto error = find_part(symbol, bytes, offset, part)) return error;
  return copy({part.data(), from, bytes, kind}, stream);
}

cudaError_t copy_from_symbol(void* to, const void* symbol, std::size_t bytes, std::size_t offset, cudaMemcpyKind kind,
                             cudaStream_t stream) {
  std::span<char> part;
  if (const auto error = find_part(symbol, bytes, offset, part)) return error;
  return copy({to, part.data(), bytes, kind}, stream);
}

// Runs a call for which the host waits. It runs in the legacy stream, and is refused during a capture.
template <class Body>
cudaError_t synchronous(Body&& body) {
  const cudaError_t error = refused_while_capturing();
  return error == cudaSuccess ? body() : error;
}

}  // namespace

std::size_t live_pinned() { return pinned().size(); }

}  // namespace gatefold::cuda_emulator

using namespace gatefold::cuda_emulator;

cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  return runtime_call("cudaMalloc",
                      [&] { return synchronous([&] { return allocate(pointer, bytes, current_device()); }); });
}

cudaError_t cudaFree(void* pointer) {
  return runtime_call("cudaFree", [&] { return synchronous([&] { return release(pointer); }); });
}

// Allocates in the order of the stream; the emulator does so at once. In a graph, the call would be a node that owns
// memory, which the emulator does not model.
cudaError_t cudaMallocAsync(void** pointer, size_t bytes, cudaStream_t stream) {
  return runtime_call("cudaMallocAsync", [&] {
    if (!known_stream(stream)) return cudaErrorInvalidResourceHandle;
    return synchronous([&] { return allocate(pointer, bytes, device_of(stream)); });
  });
}

cudaError_t cudaFreeAsync(void* pointer, cudaStream_t stream) {
  return runtime_call("cudaFreeAsync", [&] {
    if (!known_stream(stream)) return cudaErrorInvalidResourceHandle;
    return synchronous([&] { return release(pointer); });
  });
}

cudaError_t cudaMallocHost(void** pointer, size_t bytes) {
  return runtime_call("cudaMallocHost", [&] { return allocate_pinned(pointer, bytes); });
}

cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned) {
  return runtime_call("cudaHostAlloc", [&] { return allocate_pinned(pointer, bytes); });
}

cudaError_t cudaFreeHost(void* pointer) {
  return runtime_call("cudaFreeHost", [&] {
    return synchronous([&] { return pointer ? unpin(pointer, true, cudaErrorInvalidValue) : cudaSuccess; });
  });
}

cudaError_t cudaHostRegister(void* pointer, size_t bytes, unsigned) {
  return runtime_call("cudaHostRegister", [&] {
    return synchronous([&] {
      if (!pointer || bytes == 0) return cudaErrorInvalidValue;
      if (is_pinned(pointer, 1)) return cudaErrorHostMemoryAlreadyRegistered;
      return pin(static_cast<char*>(pointer), {bytes, nullptr});
    });
  });
}

cudaError_t cudaHostUnregister(void* pointer) {
  return runtime_call("cudaHostUnregister", [&] {
    return synchronous([&] { return unpin(pointer, false, cudaErrorHostMemoryNotRegistered); });
  });
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  return runtime_call("cudaMemcpy", [&] {
    return synchronous([&] { return copy({to, from, bytes, kind}, nullptr); });
  });
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  return runtime_call("cudaMemcpyAsync", [&] { return copy({to, from, bytes, kind}, stream); });
}

cudaError_t cudaMemset(void* at, int value, size_t bytes) {
  return runtime_call("cudaMemset", [&] {
    return synchronous([&] { return fill({at, value, bytes, current_device()}, nullptr); });
  });
}

cudaError_t cudaMemsetAsync(void* at, int value, size_t bytes, cudaStream_t stream) {
  return runtime_call("cudaMemsetAsync", [&] { return fill({at, value, bytes, current_device()}, stream); });
}

cudaError_t cudaMemcpyToSymbol(const void* symbol, const void* from, size_t bytes, size_t offset, cudaMemcpyKind kind) {
  return runtime_call("cudaMemcpyToSymbol", [&] {
    return synchronous([&] { return copy_to_symbol(symbol, from, bytes, offset, kind, nullptr); });
  });
}

cudaError_t cudaMemcpyToSymbolAsync(const void* symbol, const void* from, size_t bytes, size_t offset,
                                    cudaMemcpyKind kind, cudaStream_t stream) {
  return runtime_call("cudaMemcpyToSymbolAsync",
                      [&] { return copy_to_symbol(symbol, from, bytes, offset, kind, stream); });
}

cudaError_t cudaMemcpyFromSymbol(void* to, const void* symbol, size_t bytes, size_t offset, cudaMemcpyKind kind) {
  return runtime_call("cudaMemcpyFromSymbol", [&] {
    return synchronous([&] { return copy_from_symbol(to, symbol, bytes, offset, kind, nullptr); });
  });
}

cudaError_t cudaMemcpyFromSymbolAsync(void* to, const void* symbol, size_t bytes, size_t offset, cudaMemcpyKind kind,
                                      cudaStream_t stream) {
  return runtime_call("cudaMemcpyFromSymbolAsync",
                      [&] { return copy_from_symbol(to, symbol, bytes, offset, kind, stream); });
}

cudaError_t cudaGetSymbolAddress(void** pointer, const void* symbol) {
  return runtime_call("cudaGetSymbolAddress", [&] {
    std::span<char> memory;
    if (const auto error = find_variable(symbol, memory)) return error;
    *pointer = memory.data();
    return cudaSuccess;
  });
}

cudaError_t cudaGetSymbolSize(size_t* bytes, const void* symbol) {
  return runtime_call("cudaGetSymbolSize", [&] {
    std::span<char> memory;
    if (const auto error = find_variable(symbol, memory)) return error;
    *bytes = memory.size();
    return cudaSuccess;
  });
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  return runtime_call("cudaMemGetInfo", [&] {
    *total = device().memory_bytes;
    *free = *total - std::min(*total, Memory::device().live_bytes_of(current_device()));
    return cudaSuccess;
  });
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  return runtime_call("cudaPointerGetAttributes", [&] {
    auto* const address = const_cast<void*>(pointer);
    const bool on_device = is_device(pointer, 1), registered = is_pinned(pointer, 1);
    *attributes = {};
    attributes->type = on_device ? cudaMemoryTypeDevice : registered ? cudaMemoryTypeHost : cudaMemoryTypeUnregistered;
    attributes->device = on_device ? std::max(0, Memory::device().device_of(pointer)) : registered ? 0 : -1;
    attributes->devicePointer = on_device || registered ? address : nullptr;
    attributes->hostPointer = on_device ? nullptr : address;
    return cudaSuccess;
  });
}
