#pragma once

#include <cuda_runtime.h>

#include <utility>
#include <vector>

#include "gatefold/core/config.hpp"

namespace gatefold::detail_::device {

/// Device memory that graphs may use and the objects of a pool have outgrown: it stays until the context ends.
class Retired {
 public:
  Retired() = default;
  Retired(const Retired&) = delete;
  Retired& operator=(const Retired&) = delete;
  ~Retired() {
    for (void* p : kept_)
      if (cudaFree(p) != cudaSuccess) cudaGetLastError();
  }

  /// While it lives, what tensors outgrow on this thread is kept by `by`; by nobody if it is null.
  class Scope {
   public:
    explicit Scope(Retired* by) : before_(std::exchange(current_, by)) {}
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    ~Scope() { current_ = before_; }

   private:
    Retired* before_;
  };
  /// Whether somebody keeps p now.
  static bool keep(void* p) {
    if (current_) current_->kept_.push_back(p);
    return current_ != nullptr;
  }

 private:
  GATEFOLD_UNIQUE static inline thread_local Retired* current_ = nullptr;
  std::vector<void*> kept_;
};

}  // namespace gatefold::detail_::device
