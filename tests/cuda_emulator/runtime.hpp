// Shared code of the stand-in CUDA runtime: the beginning of each call, handles, and the order of work in streams.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

namespace gatefold::cuda_emulator {

/// The mutex of all calls: the emulator is one machine, but several host threads may use the runtime. It is recursive,
/// because a stream may call host functions.
std::recursive_mutex& runtime_lock();

/// Counts the call. @returns the failure that a test set for it, or cudaErrorNoDevice without a device
cudaError_t begin_call(const char* name);

/// Stores an error for cudaGetLastError.
cudaError_t remember(cudaError_t error);

/// Runs one runtime call: locks, counts the call, calls the body, and stores its error.
template <class Body>
cudaError_t runtime_call(const char* name, Body&& body) {
  const std::lock_guard lock(runtime_lock());
  const cudaError_t error = begin_call(name);
  return remember(error == cudaSuccess ? body() : error);
}

/// Returns the number of the next handle, of any kind. A number is never used twice, so that a destroyed handle stays
/// unknown.
std::uintptr_t next_handle();

/// The current device of the calling thread. New objects belong to it.
int& current_device();

/// Returns the device of a stream. Each device has its own default streams; the handle of a default stream means the
/// default stream of the current device.
int device_of(cudaStream_t stream);

/// Returns cudaErrorInvalidResourceHandle for a stream of a different device, as launches do.
cudaError_t expect_current_device(cudaStream_t stream);

/// The live objects of one kind, by their opaque handles.
template <class Handle, class T>
class Handles {
 public:
  Handle add(T object) {
    const auto handle = reinterpret_cast<Handle>(next_handle());
    live_.emplace(handle, std::move(object));
    return handle;
  }
  T* find(Handle handle) {
    const auto found = live_.find(handle);
    return found == live_.end() ? nullptr : &found->second;
  }
  bool remove(Handle handle) { return live_.erase(handle) != 0; }
  std::size_t size() const { return live_.size(); }
  auto begin() { return live_.begin(); }
  auto end() { return live_.end(); }

 private:
  std::map<Handle, T> live_;
};

/// One operation of a stream. It owns copies of its arguments, because a graph may run it again later.
using Operation = std::function<void()>;
using Operations = std::vector<Operation>;

/// Runs the operation at once, or records it if the stream is being captured.
cudaError_t submit(cudaStream_t stream, Operation operation);

/// Returns the error of a call that synchronises or allocates during a capture, and invalidates the capture. Returns
/// cudaSuccess if there is no capture.
cudaError_t refused_while_capturing();

/// known_stream() returns true if `stream` is a stream; is_capturing() if its work is being recorded.
bool known_stream(cudaStream_t stream);
bool is_capturing(cudaStream_t stream);

/// Makes a graph from the operations that a capture has recorded.
cudaGraph_t add_graph(Operations operations);

/// The parts of live_handles(). Each is in the file of its objects.
std::size_t live_streams();
std::size_t live_graphs();
std::size_t live_pinned();
std::size_t live_blas_handles();
std::size_t live_communicators();

/// Forgets every capture.
void abandon_captures();

}  // namespace gatefold::cuda_emulator
