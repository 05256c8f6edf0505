#pragma once

#include <concepts>

#include "gatefold/core/config.hpp"
#include "gatefold/policy/policy.hpp"
#include "gatefold/tensor/view.hpp"

namespace gatefold::detail_::policy {

/// Argument types for the concepts of the policy families. A Probe is never constructed.
template <class T, class B>
struct Probe {
  typename B::Context& ctx;
  View<const T, 2, B> in;
  View<T, 2, B> out;
  Groups<B> groups;
};

/// Argument types for f and df of an update rule, used in concepts only.
template <class T, class B>
struct ProbeCall {
  void operator()(View<const T, 2, B>, View<T, 2, B>, int, const auto&... /*step*/) const {}
  void operator()(View<const T, 2, B>, View<const T, 2, B>, View<T, 2, B>, int) const {}
};

/// A type that only a generic parameter (auto, auto&&...) accepts. The checks use it to detect generic parameters.
struct Foreign {};

/// Deduced if the number or the order of the parts of a composition is wrong, so that a static_assert can name the
/// mistake.
template <class... P>
struct Misplaced {};
/// Always false. It is the condition of a static_assert in a template that must never be instantiated.
template <class... P>
inline constexpr bool never = false;
template <class P>
inline constexpr bool is_misplaced = false;
template <class... P>
inline constexpr bool is_misplaced<Misplaced<P...>> = true;

/// Defines what a composition L requires of its parts. `check` returns true, or a static_assert names the part that
/// does not fit. The specialisations for layers and branches are in diagnosis/.
template <class L>
struct Parts {
  template <class T, class B>
  static constexpr bool check() {
    return true;
  }
};
/// Always true. A composition L names it in a static_assert. This instantiates Parts<L>, which reports parts in a wrong
/// order.
template <class L>
inline constexpr bool in_order = sizeof(Parts<L>) > 0;
/// Returns true if the parts of L fit.
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
