#pragma once

#include <cstddef>

#include "gatefold/backend/object_pool.hpp"
#include "gatefold/backend/scratch.hpp"
#include "gatefold/core/types.hpp"

namespace gatefold {

/// A backend without memory: tensors have extents and no elements, and loops do nothing. What depends on shapes alone
/// is asked of it, as the number of values in a model that this machine could not hold. It has what `init` of a policy
/// needs, and no products.
struct Shapes {
  static constexpr bool is_host = false;

  /// As every backend has one.
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
