// Streams and events. A stream does its work at once. During a capture, it records the work in the order of the calls.
#include <cuda_runtime_api.h>

#include <chrono>
#include <map>
#include <memory>
#include <utility>

#include "cuda_emulator/runtime.hpp"

namespace gatefold::cuda_emulator {
namespace {

using Clock = std::chrono::steady_clock;

// The contribution of one stream to a capture.
struct Member {
  std::size_t operations = 0;
  bool joined = true;  // true if a different member waits for all its operations
};

struct Capture {
  cudaStream_t origin;
  cudaStreamCaptureMode mode;
  bool invalidated = false;
  Operations operations = {};
  std::map<cudaStream_t, Member> members = {};
};

struct Stream {
  unsigned flags = cudaStreamDefault;
  int priority = 0;
  int device = 0;
  std::shared_ptr<Capture> capture = nullptr;
};

struct Event {
  unsigned flags = cudaEventDefault;
  int device = 0;
  bool recorded = false;
  Clock::time_point time = {};
  // The capture in which the event was recorded, if any.
  std::weak_ptr<Capture> capture = {};
  cudaStream_t stream = nullptr;
  std::size_t operations = 0;
  bool captured = false;
};

struct Objects {
  Handles<cudaStream_t, Stream> streams;
  Handles<cudaEvent_t, Event> events;
};
Objects& objects() {
  static auto& all = *new Objects;
  return all;
}

bool is_legacy(cudaStream_t stream) { return stream == nullptr || stream == cudaStreamLegacy; }

std::shared_ptr<Capture> capture_of(cudaStream_t stream) {
  const Stream* found = objects().streams.find(stream);
  return found ? found->capture : nullptr;
}

// Invalidates every capture for which `concerned` is true. @returns whether there was one
template <class Predicate>
bool invalidate(const Predicate& concerned) {
  bool any = false;
  for (auto& [handle, stream] : objects().streams) {
    if (!stream.capture || !concerned(stream)) continue;
    stream.capture->invalidated = any = true;
  }
  return any;
}

// Returns true for streams for which the legacy stream of the current device waits.
bool blocking(const Stream& stream) {
  return !(stream.flags & cudaStreamNonBlocking) && stream.device == current_device();
}

// Refuses work of the legacy stream if a blocking stream is being captured, and invalidates the capture. The legacy
// stream waits for all blocking streams, and a graph cannot express such a wait.
cudaError_t check_legacy(cudaStream_t stream) {
  if (!is_legacy(stream)) return cudaSuccess;
  return invalidate(blocking) ? cudaErrorStreamCaptureImplicit : cudaSuccess;
}

bool blocking_capture() {
  for (const auto& [handle, stream] : objects().streams)
    if (stream.capture && blocking(stream)) return true;
  return false;
}

void end_capture(const Capture& capture) {
  for (auto& [handle, stream] : objects().streams) {
    if (stream.capture.get() == &capture) stream.capture = nullptr;
  }
}

cudaError_t create_stream(cudaStream_t* stream, unsigned flags, int priority) {
  if (!stream || (flags != cudaStreamDefault && flags != cudaStreamNonBlocking)) return cudaErrorInvalidValue;
  *stream = objects().streams.add({flags, priority, current_device()});
  return cudaSuccess;
}

cudaError_t create_event(cudaEvent_t* event, unsigned flags) {
  if (!event) return cudaErrorInvalidValue;
  *event = objects().events.add({flags, current_device()});
  return cudaSuccess;
}

// Waits for a stream or queries whether its work is done. Returns an error during a capture.
cudaError_t settle_stream(cudaStream_t stream) {
  return known_stream(stream) ? refused_while_capturing() : cudaErrorInvalidResourceHandle;
}

cudaError_t settle_event(cudaEvent_t event) {
  const Event* found = objects().events.find(event);
  if (!found) return cudaErrorInvalidResourceHandle;
  if (!found->captured) return refused_while_capturing();
  if (const auto capture = found->capture.lock()) capture->invalidated = true;
  return cudaErrorCapturedEvent;
}

cudaError_t record_event(cudaEvent_t event, cudaStream_t stream) {
  Event* found = objects().events.find(event);
  if (!found || !known_stream(stream) || found->device != device_of(stream)) return cudaErrorInvalidResourceHandle;
  if (const auto error = check_legacy(stream)) return error;
  const auto capture = capture_of(stream);
  if (capture && capture->invalidated) return cudaErrorStreamCaptureInvalidated;
  *found = {found->flags, found->device, true, Clock::now()};
  if (capture) {
    found->capture = capture;
    found->stream = stream;
    found->operations = capture->members[stream].operations;
    found->captured = true;
  }
  return cudaSuccess;
}

// Lets a stream wait for an event. If the event was recorded in a capture, the stream joins this capture. The stream
// that recorded the event counts as joined if it has captured no work after the event. The recorded operations run in
// the order of the calls, so the wait itself needs no operation.
cudaError_t wait_event(cudaStream_t stream, cudaEvent_t event) {
  const Event* found = objects().events.find(event);
  if (!found || !known_stream(stream)) return cudaErrorInvalidResourceHandle;
  const auto recording = found->capture.lock();
  const auto own = capture_of(stream);
  if (own && own->invalidated) return cudaErrorStreamCaptureInvalidated;
  if (!found->recorded) return cudaSuccess;
  if (!found->captured) {
    if (!own) return cudaSuccess;
    own->invalidated = true;
    return cudaErrorStreamCaptureIsolation;
  }
  if (!recording) return cudaErrorCapturedEvent;  // the capture of the event has ended
  if (own && own != recording) {
    own->invalidated = recording->invalidated = true;
    return cudaErrorStreamCaptureMerge;
  }
  if (is_legacy(stream)) {
    recording->invalidated = true;
    return cudaErrorStreamCaptureImplicit;
  }
  objects().streams.find(stream)->capture = recording;
  Member& other = recording->members[found->stream];
  if (found->stream != stream) {
    other.joined |= found->operations == other.operations;
    recording->members[stream].joined = false;
  }
  return cudaSuccess;
}

cudaError_t finish_capture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = nullptr;
  const auto capture = capture_of(stream);
  if (!known_stream(stream)) return cudaErrorInvalidResourceHandle;
  if (!capture) return cudaErrorIllegalState;
  if (capture->origin != stream) {
    capture->invalidated = true;
    return cudaErrorStreamCaptureUnmatched;
  }
  end_capture(*capture);
  if (capture->invalidated) return cudaErrorStreamCaptureInvalidated;
  for (const auto& [handle, member] : capture->members) {
    if (handle != stream && !member.joined) return cudaErrorStreamCaptureUnjoined;
  }
  *graph = add_graph(std::move(capture->operations));
  return cudaSuccess;
}

}  // namespace

bool known_stream(cudaStream_t stream) {
  return is_legacy(stream) || stream == cudaStreamPerThread || objects().streams.find(stream);
}

int device_of(cudaStream_t stream) {
  const Stream* found = objects().streams.find(stream);
  return found ? found->device : current_device();
}

bool is_capturing(cudaStream_t stream) { return capture_of(stream) != nullptr; }

cudaError_t submit(cudaStream_t stream, Operation operation) {
  if (!known_stream(stream)) return cudaErrorInvalidResourceHandle;
  if (const auto error = check_legacy(stream)) return error;
  const auto capture = capture_of(stream);
  if (!capture) {
    operation();
    return cudaSuccess;
  }
  if (capture->invalidated) return cudaErrorStreamCaptureInvalidated;
  capture->operations.push_back(std::move(operation));
  Member& member = capture->members[stream];
  ++member.operations;
  member.joined = false;
  return cudaSuccess;
}

cudaError_t refused_while_capturing() {
  const auto strict = [](const Stream& stream) { return stream.capture->mode != cudaStreamCaptureModeRelaxed; };
  return invalidate(strict) ? cudaErrorStreamCaptureUnsupported : cudaSuccess;
}

void abandon_captures() {
  for (auto& [handle, stream] : objects().streams) stream.capture = nullptr;
}

std::size_t live_streams() { return objects().streams.size() + objects().events.size(); }

}  // namespace gatefold::cuda_emulator

using namespace gatefold::cuda_emulator;

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return runtime_call("cudaStreamCreate", [&] { return create_stream(stream, cudaStreamDefault, 0); });
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return runtime_call("cudaStreamCreateWithFlags", [&] { return create_stream(stream, flags, 0); });
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  return runtime_call("cudaStreamCreateWithPriority", [&] { return create_stream(stream, flags, priority); });
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return runtime_call("cudaDeviceGetStreamPriorityRange", [&] {
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
  });
}

cudaError_t cudaStreamGetFlags(cudaStream_t stream, unsigned* flags) {
  return runtime_call("cudaStreamGetFlags", [&] {
    if (!known_stream(stream)) return cudaErrorInvalidResourceHandle;
    const Stream* found = objects().streams.find(stream);
    *flags = found ? found->flags : cudaStreamDefault;
    return cudaSuccess;
  });
}

cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
  return runtime_call("cudaStreamGetPriority", [&] {
    if (!known_stream(stream)) return cudaErrorInvalidResourceHandle;
    const Stream* found = objects().streams.find(stream);
    *priority = found ? found->priority : 0;
    return cudaSuccess;
  });
}

cudaError_t cudaStreamGetDevice(cudaStream_t stream, int* device) {
  return runtime_call("cudaStreamGetDevice", [&] {
    if (!known_stream(stream)) return cudaErrorInvalidResourceHandle;
    *device = device_of(stream);
    return cudaSuccess;
  });
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return runtime_call("cudaStreamDestroy", [&] {
    if (const auto capture = capture_of(stream)) {
      capture->invalidated = true;
      return cudaErrorStreamCaptureUnsupported;
    }
    return objects().streams.remove(stream) ? cudaSuccess : cudaErrorInvalidResourceHandle;
  });
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return runtime_call("cudaStreamSynchronize", [&] { return settle_stream(stream); });
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return runtime_call("cudaStreamQuery", [&] { return settle_stream(stream); });
}

cudaError_t cudaDeviceSynchronize() {
  return runtime_call("cudaDeviceSynchronize", [] { return refused_while_capturing(); });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  return runtime_call("cudaStreamWaitEvent", [&] { return wait_event(stream, event); });
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  return runtime_call("cudaLaunchHostFunc", [&] { return submit(stream, [=] { function(data); }); });
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return runtime_call("cudaEventCreate", [&] { return create_event(event, cudaEventDefault); });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  return runtime_call("cudaEventCreateWithFlags", [&] { return create_event(event, flags); });
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return runtime_call("cudaEventDestroy",
                      [&] { return objects().events.remove(event) ? cudaSuccess : cudaErrorInvalidResourceHandle; });
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return runtime_call("cudaEventRecord", [&] { return record_event(event, stream); });
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return runtime_call("cudaEventSynchronize", [&] { return settle_event(event); });
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  return runtime_call("cudaEventQuery", [&] { return settle_event(event); });
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  return runtime_call("cudaEventElapsedTime", [&] {
    const Event *first = objects().events.find(start), *last = objects().events.find(end);
    for (const Event* event : {first, last}) {
      if (!event || !event->recorded || event->flags & cudaEventDisableTiming) return cudaErrorInvalidResourceHandle;
    }
    if (first->device != last->device) return cudaErrorInvalidResourceHandle;
    *milliseconds = std::chrono::duration<float, std::milli>(last->time - first->time).count();
    return cudaSuccess;
  });
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  return runtime_call("cudaStreamBeginCapture", [&] {
    if (is_legacy(stream)) return cudaErrorStreamCaptureUnsupported;
    Stream* found = objects().streams.find(stream);
    if (!found) return cudaErrorInvalidResourceHandle;
    if (found->capture) return cudaErrorIllegalState;
    found->capture = std::make_shared<Capture>(Capture{stream, mode});
    return cudaSuccess;
  });
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  return runtime_call("cudaStreamEndCapture", [&] { return finish_capture(stream, graph); });
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  return runtime_call("cudaStreamIsCapturing", [&] {
    if (!known_stream(stream)) return cudaErrorInvalidResourceHandle;
    if (is_legacy(stream) && blocking_capture()) return cudaErrorStreamCaptureImplicit;  // the capture continues
    const auto capture = capture_of(stream);
    *status = !capture               ? cudaStreamCaptureStatusNone
              : capture->invalidated ? cudaStreamCaptureStatusInvalidated
                                     : cudaStreamCaptureStatusActive;
    return cudaSuccess;
  });
}
