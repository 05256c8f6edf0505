#pragma once

#include <atomic>

namespace gatefold {

/// Who has a copy of the elements of a tensor as they are. It is forgotten as soon as somebody asks for the elements to
/// write them. A view that was taken before and is written through later is not seen.
class CopyStamp {
 public:
  CopyStamp() = default;
  CopyStamp(CopyStamp&& other) noexcept { other.forget(); }
  CopyStamp& operator=(CopyStamp&& other) noexcept {
    forget();
    other.forget();
    return *this;
  }
  ~CopyStamp() = default;

  void set(const void* owner) const { owner_.store(owner, std::memory_order_relaxed); }
  bool is(const void* owner) const { return owner_.load(std::memory_order_relaxed) == owner; }
  /// Threads that write different elements ask for them at once: they store it the first time alone.
  void forget() const {
    if (!is(nullptr)) set(nullptr);
  }

 private:
  mutable std::atomic<const void*> owner_{nullptr};
};

/// Of a tensor that nobody copies.
struct NoCopyStamp {
  static void forget() {}
};

}  // namespace gatefold
