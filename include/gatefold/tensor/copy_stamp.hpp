#pragma once

#include <atomic>
#include <cstdint>

#include "gatefold/core/config.hpp"

namespace gatefold {

/// Which copy there is of the elements of a tensor as they are, by the number of the pass that made it. It is forgotten
/// as soon as somebody asks for the elements to write them. A view that was taken before and is written through later
/// is not seen.
class CopyStamp {
 public:
  /// The number of a pass: that of no other, wherever its copies are moved.
  static std::uint64_t next() { return last_.fetch_add(1, std::memory_order_relaxed) + 1; }

  CopyStamp() = default;
  CopyStamp(CopyStamp&& other) noexcept { other.forget(); }
  CopyStamp& operator=(CopyStamp&& other) noexcept {
    forget();
    other.forget();
    return *this;
  }
  ~CopyStamp() = default;

  void set(std::uint64_t pass) const { pass_.store(pass, std::memory_order_relaxed); }
  bool is(std::uint64_t pass) const { return pass_.load(std::memory_order_relaxed) == pass; }
  /// Threads that write different elements ask for them at once: they store it the first time alone.
  void forget() const {
    if (!is(0)) set(0);
  }

 private:
  GATEFOLD_UNIQUE static inline std::atomic<std::uint64_t> last_{0};
  mutable std::atomic<std::uint64_t> pass_{0};
};

/// Of a tensor that nobody copies: what is said of its copies is forgotten at once.
struct NoCopyStamp {
  static void set(std::uint64_t) {}
  static bool is(std::uint64_t) { return false; }
  static void forget() {}
};

}  // namespace gatefold
