#pragma once

#include <cstddef>

#include "gatefold/backend/object_pool.hpp"
#include "gatefold/backend/scratch.hpp"
#include "gatefold/core/types.hpp"

namespace gatefold {

/// A backend without memory: tensors have extents but no elements, and loops do nothing. It answers questions that
/// depend only on shapes, for example the number of values in a model that is too large for this machine. It has the
/// functions that `init` of a policy needs, and no products.
struct Shapes {
  static constexpr bool is_host = false;

  /// A context, with the members that the functions of this backend need.
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
  template <class F>
  static void for_rows(Context&, Index, const F&) {}
};

}  // namespace gatefold
