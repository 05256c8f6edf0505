#pragma once

#include <atomic>
#include <cstddef>
#include <mutex>

#include "gatefold/core/config.hpp"
#include "gatefold/core/error.hpp"

namespace gatefold {

namespace detail_ {

/// A mutex that a thread holds while it writes the deferred zeros of a tensor, because several threads can access the
/// tensor at once.
GATEFOLD_UNIQUE inline std::mutex writing_zeros;

}  // namespace detail_

[[noreturn, gnu::noinline, gnu::cold]] inline void throw_deferred_zeros() {
  throw Error("Tensor: the zeros of set_zero_later are not yet written: call write_zeros(pack) before you read it");
}

/// Marks a tensor as zero without writing the zeros. They are written at the first non-const access, on the accessing
/// thread. A matrix product that overwrites every element calls take() instead; the zeros are then never written. A
/// const access to a tensor that is still marked is an error, so that const access never writes.
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
  /// @param ctx  the context that writes the zeros. It must live until then
  void defer(auto& ctx) { ctx_.store(&ctx, std::memory_order_relaxed); }
  /// Returns whether the zeros of the tensor are still to be written, and cancels them. If it returns true, the caller
  /// must write all elements.
  bool take() { return ctx_.exchange(nullptr, std::memory_order_relaxed) != nullptr; }
  void write(void* data, std::size_t bytes) {
    if (ctx_.load(std::memory_order_acquire) != nullptr) write_now(data, bytes);
  }
  /// @throws Error if the zeros are still to be written
  void expect_written() const {
    if (ctx_.load(std::memory_order_acquire) != nullptr) throw_deferred_zeros();
  }

 private:
  [[gnu::noinline, gnu::cold]] void write_now(void* data, std::size_t bytes) {
    const std::lock_guard lock(detail_::writing_zeros);
    void* const ctx = ctx_.load(std::memory_order_relaxed);
    if (ctx == nullptr) return;
    B::write_zeros(*static_cast<typename B::Context*>(ctx), data, bytes);
    ctx_.store(nullptr, std::memory_order_release);
  }

  std::atomic<void*> ctx_{nullptr};
};

/// Replaces DeferredZeros in tensors that write their zeros at once.
struct NoDeferredZeros {
  static bool take() { return false; }
  static void write(void*, std::size_t) {}
  static void expect_written() {}
};

}  // namespace gatefold
