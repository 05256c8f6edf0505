#pragma once

#include <concepts>

#include "gatefold/core/config.hpp"
#include "gatefold/policy/policy.hpp"
#include "gatefold/tensor/view.hpp"

namespace gatefold::detail_::policy {

/// Stand-ins for arguments, used by the concepts of the policy families. Never called.
template <class T, class B>
struct Probe {
  typename B::Context& ctx;
  View<const T, 2, B> in;
  View<T, 2, B> out;
  Groups<B> groups;
};

/// Stand-ins for f and df of an update rule.
template <class T, class B>
struct ProbeCall {
  void operator()(View<const T, 2, B>, View<T, 2, B>, int, const auto&... /*step*/) const {}
  void operator()(View<const T, 2, B>, View<const T, 2, B>, View<T, 2, B>, int) const {}
};

/// Nobody's type: an argument that only a parameter of any type (auto, auto&&...) takes.
struct Foreign {};

/// What the deduction of a composition makes of a number or an order of parts that it does not have, for a sentence.
template <class... P>
struct Misplaced {};
template <class P>
inline constexpr bool is_misplaced = false;
template <class... P>
inline constexpr bool is_misplaced<Misplaced<P...>> = true;

/// True unless a composition of the library says of its parts, in `check_parts`, that they do not fit.
template <class L, class T, class B>
constexpr bool check_inside() {
  if constexpr (requires { L::template check_parts<T, B>(); }) {
    return L::template check_parts<T, B>();
  } else {
    return true;
  }
}

/// A policy with Params says how they begin.
template <class P, class T, class B>
concept HasInit = !detail_::named::Params<P>() || requires(const P policy, typename B::Context& ctx) {
  { policy.template init<T, B>(ctx, Seed{}) } -> std::same_as<Params<P, T, B>>;
};

}  // namespace gatefold::detail_::policy
