// The log of runtime calls, and the failures that tests have set.
#include "cuda_emulator/calls.hpp"

#include <utility>

#include "cuda_emulator/launch.hpp"
#include "cuda_emulator/runtime.hpp"

namespace gatefold::cuda_emulator {
namespace {

struct Failure {
  long countdown;
  cudaError_t error;
};

// Tables that static objects of a program may still use at exit are never destroyed.
std::map<std::string, std::vector<Failure>>& failures() {
  static auto& table = *new std::map<std::string, std::vector<Failure>>;
  return table;
}

thread_local cudaError_t last_error = cudaSuccess;

// Counts down every failure of this name. Returns the error of the failure that is due, or cudaSuccess. If several are
// due, the failure that was set last counts.
cudaError_t due_failure(const std::string& name) {
  const auto found = failures().find(name);
  if (found == failures().end()) return cudaSuccess;
  cudaError_t due = cudaSuccess;
  std::vector<Failure> later;
  for (Failure failure : std::exchange(found->second, {})) {
    if (failure.countdown-- == 0) {
      due = failure.error;
    } else {
      later.push_back(failure);
    }
  }
  found->second = std::move(later);
  return due;
}

}  // namespace

Calls& calls() {
  static auto& log = *new Calls;
  return log;
}

void fail(const std::string& name, long nth, cudaError_t error) { failures()[name].push_back({nth, error}); }

std::vector<std::string> pending_failures() {
  std::vector<std::string> sentences;
  for (const auto& [name, waiting] : failures()) {
    for (const Failure& failure : waiting) {
      sentences.push_back(name + ": expected a call that fails with " + cudaGetErrorName(failure.error) +
                          ", got none; calls missing: " + std::to_string(failure.countdown + 1));
    }
  }
  return sentences;
}

std::size_t live_handles() {
  std::size_t live = live_streams() + live_graphs() + live_pinned() + live_blas_handles();
#ifdef CUDA_EMULATOR_HAS_NCCL
  live += live_communicators();
#endif
  return live;
}

void reset_runtime() {
  calls().by_name.clear();
  failures().clear();
  abandon_captures();
  last_error = cudaSuccess;
  current_device() = 0;
}

std::recursive_mutex& runtime_lock() {
  static auto& lock = *new std::recursive_mutex;
  return lock;
}

cudaError_t begin_call(const char* name) {
  ++calls().by_name[name];
  if (const cudaError_t error = due_failure(name)) return error;
  return options().devices == 0 ? cudaErrorNoDevice : cudaSuccess;
}

cudaError_t remember(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

std::uintptr_t next_handle() {
  static std::uintptr_t last = 0x10000;
  return last += 16;
}

}  // namespace gatefold::cuda_emulator

using namespace gatefold::cuda_emulator;

// The two functions that report errors are not counted, and tests cannot make them fail.
cudaError_t cudaPeekAtLastError() { return last_error; }

cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }
