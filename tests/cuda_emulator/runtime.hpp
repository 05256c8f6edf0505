// What the files of the stand-in CUDA runtime share: the frame of a call, handles, and the order of work in streams.
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

/// One call at a time: two host threads may use the runtime, and the emulator is one machine. Recursive, for host
/// functions that a stream calls.
std::recursive_mutex& runtime_lock();

/// Counts the call. @returns what a test wants it to fail with, or cudaErrorNoDevice without a device
cudaError_t begin_call(const char* name);

/// Keeps an error for cudaGetLastError.
cudaError_t remember(cudaError_t error);

/// The frame of every runtime call.
template <class Body>
cudaError_t runtime_call(const char* name, Body&& body) {
  const std::lock_guard lock(runtime_lock());
  const cudaError_t error = begin_call(name);
  return remember(error == cudaSuccess ? body() : error);
}

/// The number of the next handle, of any kind. None is given out twice, so that a destroyed handle stays unknown.
std::uintptr_t next_handle();

/// The device of the calling thread: what it makes belongs to it.
int& current_device();

/// Whose a stream is: of the default streams each device has its own, and the current one's are meant.
int device_of(cudaStream_t stream);

/// cudaErrorInvalidResourceHandle for a stream of another device, as launches return it.
cudaError_t expect_current_device(cudaStream_t stream);

/// The live objects behind opaque handles.
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

/// One piece of work of a stream. It owns copies of its arguments, because a graph runs it again later.
using Operation = std::function<void()>;
using Operations = std::vector<Operation>;

/// Runs the operation at once, or records it if the stream is being captured.
cudaError_t submit(cudaStream_t stream, Operation operation);

/// What a call that synchronises or allocates returns while a stream is being captured; the capture is lost then.
cudaError_t refused_while_capturing();

/// Whether `stream` is a stream at all, and whether its work is being recorded.
bool known_stream(cudaStream_t stream);
bool is_capturing(cudaStream_t stream);

/// A graph of what a capture has recorded.
cudaGraph_t add_graph(Operations operations);

/// The parts of live_handles(), each in the file of its objects.
std::size_t live_streams();
std::size_t live_graphs();
std::size_t live_pinned();
std::size_t live_blas_handles();
std::size_t live_communicators();

/// Forgets every capture.
void abandon_captures();

}  // namespace gatefold::cuda_emulator
