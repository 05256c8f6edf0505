#pragma once

#include <initializer_list>
#include <sstream>

#include "gatefold/core/error.hpp"
#include "gatefold/core/types.hpp"

namespace gatefold {

/// Stands for "any extent" in expect_shape; printed as `?`.
inline constexpr Index any_extent = -1;

/// Require the extents of a view or tensor: `Mixture.forward: x: expected [?, 512], got [32, 256]`.
///
/// @throws ArgumentError unless every extent agrees
/// @cost   one comparison per dimension; the message is built on failure only
template <class V>
void expect_shape(const char* where, const char* name, const V& view, std::initializer_list<Index> expected) {
  bool same = true;
  int d = 0;
  for (Index n : expected) {
    same = same && d < V::rank && (n == any_extent || n == view.extent(d));
    ++d;
  }
  if (same && d == V::rank) return;
  std::ostringstream message;
  message << where << ": " << name << ": expected [";
  const char* comma = "";
  for (Index n : expected) {
    message << comma;
    n == any_extent ? message << '?' : message << n;
    comma = ", ";
  }
  message << "], got [";
  for (d = 0; d < V::rank; ++d) message << (d ? ", " : "") << view.extent(d);
  message << ']';
  throw ArgumentError(message.str());
}

}  // namespace gatefold
