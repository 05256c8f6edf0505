#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <sstream>

#include "gatefold/core/error.hpp"
#include "gatefold/core/types.hpp"

namespace gatefold {

/// An expected extent in expect_shape that accepts any extent (size of a dimension). Messages print it as `?`.
inline constexpr Index any_extent = -1;

/// Throws the ArgumentError of expect_shape, which names the expected and the given extents.
/// @param got  [rank] the extents of the view or tensor
[[noreturn, gnu::cold, gnu::noinline]] inline void throw_shape(const char* where, const char* name,
                                                               std::initializer_list<Index> expected, const Index* got,
                                                               int rank) {
  std::ostringstream message = message_stream();
  message << where << ": " << name << ": expected [";
  const char* comma = "";
  for (Index n : expected) {
    message << comma;
    n == any_extent ? message << '?' : message << n;
    comma = ", ";
  }
  message << "], got [";
  for (int d = 0; d < rank; ++d) message << (d ? ", " : "") << got[d];
  message << ']';
  throw ArgumentError(message.str());
}

/// Implements expect_shape for views and tensors of all types. It is not inlined, because the library checks many
/// shapes and each inlined copy would add code.
[[gnu::noinline]] inline void expect_extents(const char* where, const char* name, const Index* got, int rank,
                                             bool has_memory, std::initializer_list<Index> expected) {
  bool same = expected.size() == static_cast<std::size_t>(rank);
  for (int d = 0; same && d < rank; ++d) {
    const Index n = expected.begin()[d];
    same = got[d] >= 0 && (n == any_extent || n == got[d]);
  }
  if (!same) throw_shape(where, name, expected, got, rank);
  if (has_memory) return;
  Index size = 1;
  for (int d = 0; d < rank; ++d) size *= got[d];
  expect(size == 0, where, name, Joined{"memory of ", size, " elements"}, "a null pointer");
}

/// Requires that a view or tensor has the expected extents (sizes of its dimensions), and memory unless it has no
/// elements. Example of a message:
///
///     Mixture.forward: x: expected [?, 512], got [32, 256]
///
/// @throws ArgumentError if the rank or an extent is different, if an extent is negative, or if a view with elements
///         has a null pointer
/// @cost   one comparison per dimension; the message is built only on failure
template <class V>
void expect_shape(const char* where, const char* name, const V& view, std::initializer_list<Index> expected) {
  Index got[V::rank];
  for (int d = 0; d < V::rank; ++d) got[d] = view.extent(d);
  bool has_memory = true;
  if constexpr (requires { view.data(); }) has_memory = view.data() != nullptr;
  expect_extents(where, name, got, V::rank, has_memory, expected);
}

/// Requires that an output shares no memory with an input. Example of a message:
///
///     Mixture.forward: u: expected memory that does not overlap x, got memory of x
///
/// @throws ArgumentError if the output shares memory with the input
/// @cost   two comparisons
template <class Out, class In>
void expect_apart(const char* where, const char* out_name, const Out& out, const char* in_name, const In& in) {
  const auto address = [](const auto& view, Index at) { return reinterpret_cast<std::uintptr_t>(view.data() + at); };
  if (out.size() == 0 || in.size() == 0) return;
  expect(address(out, out.size()) <= address(in, 0) || address(in, in.size()) <= address(out, 0), where, out_name,
         Joined{"memory that does not overlap ", in_name}, Joined{"memory of ", in_name});
}

}  // namespace gatefold
