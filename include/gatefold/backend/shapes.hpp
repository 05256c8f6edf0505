#pragma once

#include <cstddef>

#include "gatefold/backend/object_pool.hpp"
#include "gatefold/backend/scratch.hpp"

namespace gatefold {

/// A backend without memory: tensors have extents but no elements, and loops do nothing. Use it to compute values that
/// depend only on shapes, for example the number of parameters of a model that is too large for this machine. It has
/// only the functions that are needed to initialise parameters; it has no matrix products.
struct Shapes {
  static constexpr bool is_host = false;

  /// The context of the backend Shapes. It has the scratch memory and the object pool that every context has, but no
  /// threads or stream.
  struct Context : Scratch<Shapes>, ObjectPool {
    using Backend = Shapes;
    void synchronize() {}
  };

  static void* allocate(std::size_t) { return nullptr; }
  static void release(void*) {}
  static void poison(void*, std::size_t) {}
  static void write_zeros(Context&, void*, std::size_t) {}
  static void copy_bytes(Context&, std::size_t, const void*, void*) {}

  template <class F>
  static void for_each(Context&, Index, const F&) {}
  static void for_rows(Context&, Index, const auto&) {}
};

}  // namespace gatefold
