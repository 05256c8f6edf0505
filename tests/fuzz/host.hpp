#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <new>

#include "gatefold/backend/scratch.hpp"
#include "gatefold/core/types.hpp"

namespace fuzz {

/// The smallest backend for tensors and files: memory of the host, and copies.
struct Host {
  struct Context : gatefold::OneThread {
    using Backend = Host;
    Context() : OneThread() {}
    Scope here() { return Scope(*this); }
  };
  static constexpr bool is_host = true;

  static void* allocate(std::size_t bytes) { return ::operator new(bytes); }
  static void release(void* memory) { ::operator delete(memory); }
  static void poison(void* memory, std::size_t bytes) { std::memset(memory, 0xff, bytes); }
  static void write_zeros(Context&, void* memory, std::size_t bytes) { std::memset(memory, 0, bytes); }

  template <class T>
  static void from_host(Context&, gatefold::Index n, const T* from, T* to) {
    std::copy_n(from, n, to);
  }
  template <class T>
  static void to_host(Context&, gatefold::Index n, const T* from, T* to) {
    std::copy_n(from, n, to);
  }
};

}  // namespace fuzz
