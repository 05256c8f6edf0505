#pragma once

#include <type_traits>

#include "gatefold/core/config.hpp"
#include "gatefold/policy/named.hpp"
#include "gatefold/tensor/pack.hpp"
#include "gatefold/tensor/view.hpp"

/// Nested types that a policy may have: the first rows of the table of policy/hooks.hpp.
namespace gatefold {

// GATEFOLD_TYPE(member, what it is, without it): a nested template.
#define GATEFOLD_TYPE(member, what, ...)                                                                         \
  template <class P, class T, class B>                                                                           \
  auto member() {                                                                                                \
    if constexpr (requires { typename P::template member<T, B>; }) {                                             \
      return std::type_identity<typename P::template member<T, B>>{};                                            \
    } else {                                                                                                     \
      if constexpr (detail_::named::member<P>())                                                                 \
        GATEFOLD_REQUIRE(!detail_::named::member<P>(), "gatefold: " #member                                      \
                                                       " of a policy must be a nested template <class T, class " \
                                                       "B>; see docs/reference/optional_members.md");            \
      return std::type_identity<__VA_ARGS__>{};                                                                  \
    }                                                                                                            \
  }
namespace detail_::hook::type {

GATEFOLD_TYPE(Params, "learned tensors; gradients have the same type", Nothing<T, B>)
GATEFOLD_TYPE(Saved, "what forward keeps for backward", Nothing<T, B>)
GATEFOLD_TYPE(Carry, "of rules and layers: what travels from layer to layer; its adjoint has the same type",
              Nothing<T, B>)
GATEFOLD_TYPE(Extra, "inputs beside the items: sequences, noise, an attention trace", Nothing<T, B>)
GATEFOLD_TYPE(ExtraGrad, "adjoints of extra inputs", Nothing<T, B>)
GATEFOLD_TYPE(Items, "of branches and layers that read ids and not rows: View<const Index, 1, B>", View<const T, 2, B>)
GATEFOLD_TYPE(Plan, "of gates: who goes where", Nothing<T, B>)

}  // namespace detail_::hook::type
#undef GATEFOLD_TYPE

/// Learned values of a policy; gradients have the same type.
template <class P, class T, class B>
using Params = typename decltype(detail_::hook::type::Params<P, T, B>())::type;
/// What forward keeps for backward.
template <class P, class T, class B>
using Saved = typename decltype(detail_::hook::type::Saved<P, T, B>())::type;
/// What travels from layer to layer; its adjoint has the same type.
template <class P, class T, class B>
using Carry = typename decltype(detail_::hook::type::Carry<P, T, B>())::type;
/// Inputs beside the items: sequences, noise, an attention trace.
template <class P, class T, class B>
using Extra = typename decltype(detail_::hook::type::Extra<P, T, B>())::type;
/// Adjoints of extra inputs.
template <class P, class T, class B>
using ExtraGrad = typename decltype(detail_::hook::type::ExtraGrad<P, T, B>())::type;
/// What a branch or layer reads: rows [N, in_dim], or ids [N] in [0, in_dim).
template <class P, class T, class B>
using Items = typename decltype(detail_::hook::type::Items<P, T, B>())::type;
/// Their adjoint: that of rows has their shape, ids have none.
template <class P, class T, class B>
using ItemsGrad = std::conditional_t<std::is_same_v<Items<P, T, B>, View<const T, 2, B>>, View<T, 2, B>, Nothing<T, B>>;
/// The plan of a gate; `Nothing` when it has none, so that check_gate can say so.
template <class P, class T, class B>
using Plan = typename decltype(detail_::hook::type::Plan<P, T, B>())::type;

}  // namespace gatefold
