#pragma once

#include <concepts>
#include <type_traits>
#include <utility>

#include "gatefold/core/error.hpp"
#include "gatefold/core/types.hpp"
#include "gatefold/tensor/pack.hpp"

/// What a policy may have and need not have. A policy is a plain aggregate of options; the templates below are looked
/// up in it and replaced by `Nothing` when absent, so that a policy that keeps nothing writes nothing.
namespace gatefold {

namespace lookup {

template <class P, class T, class B>
auto params() {
  if constexpr (requires { typename P::template Params<T, B>; }) {
    return std::type_identity<typename P::template Params<T, B>>{};
  } else {
    return std::type_identity<Nothing<T, B>>{};
  }
}
template <class P, class T, class B>
auto saved() {
  if constexpr (requires { typename P::template Saved<T, B>; }) {
    return std::type_identity<typename P::template Saved<T, B>>{};
  } else {
    return std::type_identity<Nothing<T, B>>{};
  }
}
template <class P, class T, class B>
auto carry() {
  if constexpr (requires { typename P::template Carry<T, B>; }) {
    return std::type_identity<typename P::template Carry<T, B>>{};
  } else {
    return std::type_identity<Nothing<T, B>>{};
  }
}
template <class P, class T, class B>
auto extra() {
  if constexpr (requires { typename P::template Extra<T, B>; }) {
    return std::type_identity<typename P::template Extra<T, B>>{};
  } else {
    return std::type_identity<Nothing<T, B>>{};
  }
}
template <class P, class T, class B>
auto extra_grad() {
  if constexpr (requires { typename P::template ExtraGrad<T, B>; }) {
    return std::type_identity<typename P::template ExtraGrad<T, B>>{};
  } else {
    return std::type_identity<Nothing<T, B>>{};
  }
}

}  // namespace lookup

/// Learned values of a policy; gradients have the same type.
template <class P, class T, class B>
using Params = typename decltype(lookup::params<P, T, B>())::type;
/// What forward keeps for backward.
template <class P, class T, class B>
using Saved = typename decltype(lookup::saved<P, T, B>())::type;
/// What travels from layer to layer; its adjoint has the same type.
template <class P, class T, class B>
using Carry = typename decltype(lookup::carry<P, T, B>())::type;
/// Inputs beside the items: sequences, noise, an attention trace.
template <class P, class T, class B>
using Extra = typename decltype(lookup::extra<P, T, B>())::type;
/// Adjoints of extra inputs.
template <class P, class T, class B>
using ExtraGrad = typename decltype(lookup::extra_grad<P, T, B>())::type;

/// Names an element type where it cannot be deduced: `Trainer{ctx, model, loss, optimizer, Seed{1}, Element<double>{}}`.
template <class T>
struct Element {};

/// Parameters that are not deduced from the argument.
template <class V>
using Same = std::type_identity_t<V>;

/// An extra input without a default: forgetting it does not compile.
template <class V>
struct Required {
  V value;
  Required(V v) : value(v) {}
};

/// How often an update rule evaluates its branch.
template <class P>
constexpr int evaluations_of() {
  if constexpr (requires { P::evaluations; }) {
    return P::evaluations;
  } else {
    return 1;
  }
}

/// Whether backward of an expert, a gate or a part of one takes empty dslots or an empty dx, and then leaves the adjoint of
/// the items out: nothing learns below a first layer.
template <class P>
inline constexpr bool may_skip_items = requires { requires P::items_adjoint_is_optional; };

/// The extra inputs of layer l of a stack: noise is forked, everything else stays.
template <class E>
E at_layer(const E& extra, Index l) {
  if constexpr (requires { { extra.at(l) } -> std::same_as<E>; }) {
    return extra.at(l);
  } else {
    return extra;
  }
}

/// The extra inputs of a further evaluation of the same layer: auxiliary losses count once.
template <class E>
E without_auxiliary(const E& extra) {
  if constexpr (requires { { extra.without_auxiliary() } -> std::same_as<E>; }) {
    return extra.without_auxiliary();
  } else {
    return extra;
  }
}

/// Initial parameters; `Nothing` when the policy learns nothing.
template <class T, class B, class P>
Params<P, T, B> init_params(const P& policy, typename B::Context& ctx, Seed seed) {
  if constexpr (requires { typename P::template Params<T, B>; }) {
    const auto here = ctx.here();
    return policy.template init<T, B>(ctx, seed);
  } else {
    return {};
  }
}

/// Fill the model dimension of a policy that left it 0.
/// @throws ArgumentError when the policy names another one
template <class P>
P with_model_dim(const P& policy, Index model_dim) {
  if constexpr (requires { { policy.with_model_dim(model_dim) } -> std::same_as<P>; }) {
    return policy.with_model_dim(model_dim);
  } else {
    return policy;
  }
}

/// Fill the expert count of a policy that left it 0: its member `experts`, unless it has a function of this name.
/// @throws ArgumentError when the policy names another one
template <class P>
P with_experts(const P& policy, Index experts) {
  if constexpr (requires { { policy.with_experts(experts) } -> std::same_as<P>; }) {
    return policy.with_experts(experts);
  } else if constexpr (requires(P p) { p.experts = experts; }) {
    expect(policy.experts == 0 || policy.experts == experts, "Gate", "experts",
           Joined{experts, " (what stands beside it: mixed experts, say, count that many)"}, policy.experts);
    P filled = policy;
    filled.experts = experts;
    return filled;
  } else {
    return policy;
  }
}

}  // namespace gatefold
