#pragma once

#include <atomic>
#include <cstddef>
#include <mutex>

#include "gatefold/core/config.hpp"

namespace gatefold {

namespace detail_ {

/// A mutex that a thread holds while it writes the deferred zeros of a tensor, because several threads can access the
/// tensor at once.
GATEFOLD_UNIQUE inline std::mutex writing_zeros;

}  // namespace detail_

/// Marks a tensor as zero without writing the zeros. They are written at the first access, on the accessing thread. A
/// matrix product that overwrites every element calls take() instead; the zeros are then never written.
template <class B>
class DeferredZeros {
 public:
  DeferredZeros() = default;
  DeferredZeros(DeferredZeros&& other) noexcept : ctx_(other.ctx_.exchange(nullptr, std::memory_order_relaxed)) {}
  DeferredZeros& operator=(DeferredZeros&& other) noexcept {
    ctx_.store(other.ctx_.exchange(ctx_.load(std::memory_order_relaxed), std::memory_order_relaxed),
               std::memory_order_relaxed);
    return *this;
  }
  ~DeferredZeros() = default;

  /// Marks the tensor as zero without writing the zeros.
  /// @param ctx  the context that writes the zeros at the first access. It must live until then
  template <class Context>
  void defer(Context& ctx) {
    ctx_.store(&ctx, std::memory_order_relaxed);
  }
  /// Returns whether the zeros of the tensor are still to be written, and cancels them. If it returns true, the caller
  /// must write all elements.
  bool take() { return ctx_.exchange(nullptr, std::memory_order_relaxed) != nullptr; }
  void write(void* data, std::size_t bytes) const {
    if (ctx_.load(std::memory_order_acquire) != nullptr) write_now(data, bytes);
  }

 private:
  [[gnu::noinline, gnu::cold]] void write_now(void* data, std::size_t bytes) const {
    const std::lock_guard lock(detail_::writing_zeros);
    void* const ctx = ctx_.load(std::memory_order_relaxed);
    if (ctx == nullptr) return;
    B::write_zeros(*static_cast<typename B::Context*>(ctx), data, bytes);
    ctx_.store(nullptr, std::memory_order_release);
  }

  mutable std::atomic<void*> ctx_{nullptr};
};

/// Replaces DeferredZeros (zeros that are written at the first access) in tensors that write their zeros at once.
struct NoDeferredZeros {
  static bool take() { return false; }
  static void write(void*, std::size_t) {}
};

}  // namespace gatefold
