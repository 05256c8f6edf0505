#pragma once

#include <cstddef>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "gatefold/core/types.hpp"

namespace gatefold::support {

/// Reserves addresses for `count` elements. They use no memory until they are touched, so tests can have sizes beyond
/// 32 bits on a small machine. `data()` is null if the system refuses.
template <class T>
class Reserved {
 public:
  explicit Reserved(Index count) : bytes_(static_cast<std::size_t>(count) * sizeof(T)) {
#if defined(__linux__)
    void* p = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p != MAP_FAILED) data_ = static_cast<T*>(p);
#endif
  }
  Reserved(const Reserved&) = delete;
  Reserved& operator=(const Reserved&) = delete;
  ~Reserved() {
#if defined(__linux__)
    if (data_) munmap(data_, bytes_);
#endif
  }
  T* data() const { return data_; }

 private:
  std::size_t bytes_;
  T* data_ = nullptr;
};

}  // namespace gatefold::support
