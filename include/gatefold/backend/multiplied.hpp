#pragma once

#include <array>
#include <type_traits>

#include "gatefold/backend/backend.hpp"
#include "gatefold/backend/epilogue.hpp"
#include "gatefold/backend/groups.hpp"

/// Helpers for the matrix products of experts. They work for backends that can multiply values stored in a rounded type
/// (`Multiplied` in backend.hpp), and for all others.
namespace gatefold {

/// Rounds the matrix `a` once for several grouped products (one matrix product per expert). While the returned object
/// lives, products with the arguments `a` and `groups` read the rounded copy instead of rounding `a` again. Does
/// nothing if Multiplied<T, B> is T.
/// @param room  memory for the rounded copy, with one row per slot. Its values can be lost, and no other code may write
///         it while the returned object lives
template <class B, class Context, class T, class C>
[[nodiscard]] auto rounded_once(Context& ctx, const Groups<B>& groups, View<const T, 2, B> a, View<C, 2, B> room) {
  if constexpr (std::is_same_v<T, Multiplied<T, B>>) {
    struct Nothing {
      ~Nothing() {}  // NOLINT(modernize-use-equals-default): if defaulted, compilers warn of an unused variable
    };
    return Nothing{};
  } else {
    return B::rounded_once(ctx, groups, a, room);
  }
}

/// Computes c[s] = a[s] w[e]ᵀ + b[s] v[e]ᵀ for each slot s (a row of work) of each expert e. The first product is
/// computed before the second is added to it.
/// @tparam F  the type of the values of a and b: T, or Multiplied<T, B>
/// @tparam Z  the type of the values of c: T, or SlotValue<T, B>
template <class T, class F, class Z, class B, class Context>
void sum_of_two_products(Context& ctx, const Groups<B>& slots, View<const F, 2, B> a, View<const T, 3, B> w,
                         View<const F, 2, B> b, View<const T, 3, B> v, View<Z, 2, B> c) {
  if constexpr (std::is_same_v<T, F>) {
    const auto mark = ctx.mark();
    const View<T, 2, B> first = ctx.template scratch<T>(c.extent(0), c.extent(1));
    B::grouped_gemm(ctx, slots, a, w, as_transposed, first, functor::Store{});
    B::grouped_gemm(ctx, slots, b, v, as_transposed, c, functor::AddTo<T, B>{first});
  } else {
    B::grouped_gemms(ctx, slots, std::array{a, b}, std::array{w, v}, as_transposed, c);
  }
}

}  // namespace gatefold
