#pragma once

#if defined(__linux__)
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <new>
#include <vector>

namespace gatefold::support {

/// A copy of numbers at the end of readable memory. A read past them stops the program, with or without a sanitizer.
template <class T>
class Guarded {
 public:
  explicit Guarded(const std::vector<T>& from) {
    const std::size_t page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE)), bytes = from.size() * sizeof(T),
                      readable = (bytes + page - 1) / page * page;
    size_ = readable + page;
    void* const p = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) throw std::bad_alloc();
    begin_ = static_cast<std::byte*>(p);
    data_ = reinterpret_cast<T*>(begin_ + readable - bytes);
    std::copy(from.begin(), from.end(), data_);
    if (mprotect(begin_ + readable, page, PROT_NONE) != 0) throw std::bad_alloc();
  }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;
  ~Guarded() { munmap(begin_, size_); }
  const T* data() const { return data_; }

 private:
  std::byte* begin_;
  std::size_t size_;
  T* data_;
};

}  // namespace gatefold::support
#endif
