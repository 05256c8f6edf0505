#pragma once

#include <type_traits>

#include "gatefold/policy/named.hpp"
#include "gatefold/tensor/pack.hpp"

/// Looks up the optional nested types of a policy, for example Params or Saved. They are the first rows of the table in
/// docs/reference/optional_members.md.
namespace gatefold {

// GATEFOLD_TYPE(member, description, default) defines a function that looks up a nested template of a policy. A policy
// without the template gets the default.
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

GATEFOLD_TYPE(Params, "holds the learned tensors; gradients have the same type", Nothing<T, B>)
GATEFOLD_TYPE(Saved, "holds the values that forward keeps for backward", Nothing<T, B>)
GATEFOLD_TYPE(Carry, "holds the state that a rule or layer passes from layer to layer; its gradient has the same type",
              Nothing<T, B>)
GATEFOLD_TYPE(Extra, "holds inputs in addition to the items: sequence length, noise, attention trace", Nothing<T, B>)
GATEFOLD_TYPE(ExtraGrad, "holds the gradients of extra inputs", Nothing<T, B>)
GATEFOLD_TYPE(
    Items,
    "is the input type of a branch or layer: View<const T, 2, B> (rows, the default) or View<const Index, 1, B> (ids)",
    View<const T, 2, B>)
GATEFOLD_TYPE(Plan, "holds the routing that a gate computes: the experts of each item and their weights", Nothing<T, B>)

}  // namespace detail_::hook::type
#undef GATEFOLD_TYPE

/// The type of the learned tensors (parameters) of a policy. Their gradients have the same type.
template <class P, class T, class B>
using Params = typename decltype(detail_::hook::type::Params<P, T, B>())::type;
/// The type of the values that forward of a policy saves for backward.
template <class P, class T, class B>
using Saved = typename decltype(detail_::hook::type::Saved<P, T, B>())::type;
/// The type of the state that an update rule passes from layer to layer, for example momentum. The gradient of the
/// state has the same type.
template <class P, class T, class B>
using Carry = typename decltype(detail_::hook::type::Carry<P, T, B>())::type;
/// The type of the inputs of a policy in addition to the items, for example sequence length, noise or attention trace.
template <class P, class T, class B>
using Extra = typename decltype(detail_::hook::type::Extra<P, T, B>())::type;
/// The type of the gradients of extra inputs.
template <class P, class T, class B>
using ExtraGrad = typename decltype(detail_::hook::type::ExtraGrad<P, T, B>())::type;
/// The type of the items of a branch or layer: rows [N, in_dim], or ids [N] in [0, in_dim).
template <class P, class T, class B>
using Items = typename decltype(detail_::hook::type::Items<P, T, B>())::type;
/// The type of the gradient of the items: a view of the same shape if items are rows, `Nothing` if items are ids.
template <class P, class T, class B>
using ItemsGrad = std::conditional_t<std::is_same_v<Items<P, T, B>, View<const T, 2, B>>, View<T, 2, B>, Nothing<T, B>>;
/// The type of the plan of a gate, which has the experts chosen for each item. It is `Nothing` if the gate has no Plan,
/// so that check_gate can report the mistake.
template <class P, class T, class B>
using Plan = typename decltype(detail_::hook::type::Plan<P, T, B>())::type;

}  // namespace gatefold
