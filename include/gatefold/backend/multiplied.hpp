#pragma once

#include <array>
#include <type_traits>

#include "gatefold/backend/backend.hpp"
#include "gatefold/backend/epilogue.hpp"
#include "gatefold/backend/groups.hpp"
#include "gatefold/core/types.hpp"
#include "gatefold/tensor/view.hpp"

/// Products of experts that use the type `Multiplied` of a backend (backend.hpp) if the backend has it.
namespace gatefold {

/// Rounds the rows of `a` once. While the returned object lives, grouped products that read `a` through `groups` read
/// the rounded copy instead of rounding in each product. Does nothing if B does not round.
/// @param room  rows, one for each slot, in which the rounded copy can be stored. Their values must not be needed, and
///              no other code may write them while the object lives
template <class B, class Context, class T, class C>
[[nodiscard]] auto rounded_once(Context& ctx, const Groups<B>& groups, View<const T, 2, B> a, View<C, 2, B> room) {
  if constexpr (std::is_same_v<T, Multiplied<T, B>>) {
    struct Nothing {
      ~Nothing() {}  // NOLINT(modernize-use-equals-default): compilers warn of unused trivial variables
    };
    return Nothing{};
  } else {
    return B::rounded_once(ctx, groups, a, room);
  }
}

/// c[s] = a[s] w[e]ᵀ + b[s] v[e]ᵀ. The first product is computed before the second is added to it.
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
