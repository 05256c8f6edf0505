#pragma once

#include <cuda_runtime.h>

#include <utility>
#include <vector>

#include "gatefold/core/config.hpp"

namespace gatefold::detail_::device {

/// Buffers that reused objects of a context have replaced by larger ones. They are freed only when the context ends,
/// because a captured CUDA graph may still use their addresses.
class Retired {
 public:
  Retired() = default;
  Retired(const Retired&) = delete;
  Retired& operator=(const Retired&) = delete;
  ~Retired() {
    for (void* p : kept_)
      if (cudaFree(p) != cudaSuccess) cudaGetLastError();
  }

  /// While a Scope exists, tensors that get a larger buffer on its thread give their old buffer to the Retired object
  /// `by`, which keeps it. If `by` is null, old buffers are freed at once.
  class Scope {
   public:
    explicit Scope(Retired* by) : before_(std::exchange(current_, by)) {}
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    ~Scope() { current_ = before_; }

   private:
    Retired* before_;
  };
  /// Keeps the buffer p if the innermost Scope on this thread has a Retired object. Returns whether p is kept; if it is
  /// not, the caller frees p.
  static bool keep(void* p) {
    if (current_) current_->kept_.push_back(p);
    return current_ != nullptr;
  }

 private:
  GATEFOLD_UNIQUE static inline thread_local Retired* current_ = nullptr;
  std::vector<void*> kept_;
};

}  // namespace gatefold::detail_::device
