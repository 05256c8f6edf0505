#pragma once

#include <concepts>

#include "gatefold/policy/policy.hpp"

namespace gatefold::detail_::policy {

/// A struct with values of argument types. Concepts use it to test whether the functions of a policy can be called with
/// arguments of these types. A Probe is never constructed.
template <class T, class B>
struct Probe {
  typename B::Context& ctx;
  View<const T, 2, B> in;
  View<T, 2, B> out;
  Groups<B> groups;
};

/// A function object with the signatures of the two functions that an update rule calls: f evaluates a branch, df runs
/// its backward pass. It is used in concepts only.
template <class T, class B>
struct ProbeCall {
  void operator()(View<const T, 2, B>, View<T, 2, B>, int, const auto&... /*step*/) const {}
  void operator()(View<const T, 2, B>, View<const T, 2, B>, View<T, 2, B>, int) const {}
};

/// A type that only a generic parameter (auto, auto&&...) accepts. The checks use it to detect generic parameters.
struct Foreign {};

/// The type that is deduced if the number or the order of the parts of a layer or branch is wrong, for example in
/// Residual{branch, rule}. A static_assert can then describe the mistake.
template <class... P>
struct Misplaced {};
/// Always false. It is the condition of a static_assert in a template that must never be instantiated.
template <class... P>
inline constexpr bool never = false;
template <class P>
inline constexpr bool is_misplaced = false;
template <class... P>
inline constexpr bool is_misplaced<Misplaced<P...>> = true;

/// Defines what a composition L (a layer or branch made of parts) requires of its parts. `check` returns true, or a
/// static_assert names the part that does not fit. The specialisations for layers and branches are in diagnosis/.
template <class L>
struct Parts {
  template <class T, class B>
  static constexpr bool check() {
    return true;
  }
};
/// Always true, but instantiates Parts<L>, which reports parts in a wrong order. A composition L (a layer or branch
/// made of parts) uses it in a static_assert.
template <class L>
inline constexpr bool in_order = sizeof(Parts<L>) > 0;
/// Returns true if the parts of a composition L (a layer or branch made of parts) fit. If they do not, a static_assert
/// describes the mistake.
template <class L, class T, class B>
constexpr bool parts_fit() {
  return Parts<L>::template check<T, B>();
}

/// True for a policy without Params, or with a function init<T, B>(ctx, seed) that returns its Params.
template <class P, class T, class B>
concept HasInit = !detail_::named::Params<P>() || requires(const P policy, typename B::Context& ctx) {
  { policy.template init<T, B>(ctx, Seed{}) } -> std::same_as<Params<P, T, B>>;
};

}  // namespace gatefold::detail_::policy
