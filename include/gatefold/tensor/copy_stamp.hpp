#pragma once

#include <atomic>
#include <cstdint>

#include "gatefold/core/config.hpp"

namespace gatefold {

/// Records whether a rounded copy of the elements of a tensor is up to date. It holds the number of the pass over all
/// weights that made the copy. Any non-const access to the elements clears the number, because the copy can then be
/// stale. Writes through a view taken earlier are not detected.
class CopyStamp {
 public:
  /// Returns a number for a new pass that copies weights. The number is unique in the process.
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
  /// Clears the stamp: the rounded copy of the elements counts as stale. It stores only if the stamp is set, because
  /// many threads can clear the stamp at once while they access different elements of a tensor.
  void forget() const {
    if (!is(0)) set(0);
  }

 private:
  GATEFOLD_UNIQUE static inline std::atomic<std::uint64_t> last_{0};
  mutable std::atomic<std::uint64_t> pass_{0};
};

/// Replaces CopyStamp in tensors whose elements are never copied in rounded form. It records nothing.
struct NoCopyStamp {
  static void set(std::uint64_t) {}
  static bool is(std::uint64_t) { return false; }
  static void forget() {}
};

}  // namespace gatefold
