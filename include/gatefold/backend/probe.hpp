#pragma once

#include "gatefold/backend/groups.hpp"
#include "gatefold/tensor/policy.hpp"
#include "gatefold/tensor/view.hpp"

namespace gatefold::policy {

/// Stand-ins for arguments, used by the concepts of the policy families. Never called.
template <class T, class B>
struct Probe {
  typename B::Context& ctx;
  View<const T, 2, B> in;
  View<T, 2, B> out;
  Groups<B> groups;
};

/// A policy with Params says how they begin.
template <class P, class T, class B>
concept HasInit =
    !requires { typename P::template Params<T, B>; } || requires(const P policy, typename B::Context& ctx) {
      { policy.template init<T, B>(ctx, Seed{}) } -> std::same_as<Params<P, T, B>>;
    };

}  // namespace gatefold::policy
