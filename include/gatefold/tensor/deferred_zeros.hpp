#pragma once

#include <atomic>
#include <cstddef>
#include <mutex>

#include "gatefold/core/config.hpp"

namespace gatefold {

namespace detail_ {

/// Held while the zeros of a tensor are written.
GATEFOLD_UNIQUE inline std::mutex writing_zeros;

}  // namespace detail_

/// That all elements of a tensor are 0 and none of them is written yet. Whoever asks for the elements has them written
/// first, on whatever thread; a product that stores all of them takes that duty over instead.
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

  /// @param ctx  writes them when it comes to that
  template <class Context>
  void defer(Context& ctx) {
    ctx_.store(&ctx, std::memory_order_relaxed);
  }
  /// Whether they were deferred; the caller writes all elements now.
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

/// Of a tensor that writes its zeros at once.
struct NoDeferredZeros {
  static bool take() { return false; }
  static void write(void*, std::size_t) {}
};

}  // namespace gatefold
