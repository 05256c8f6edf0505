#pragma once

#include <type_traits>
#include <utility>

#include "gatefold/policy/extra_parts.hpp"
#include "gatefold/policy/hooks.hpp"

/// Functions for policies of every family. A policy is a struct of options with member functions, for example a gate,
/// an expert or an update rule. Optional members of policies are in hooks.hpp.
namespace gatefold {

/// Names the element type in a call from which it cannot be deduced, for example `Trainer{ctx, model, loss, optimizer,
/// Seed{1}, Element<double>{}}`.
template <class T>
struct Element {
  GATEFOLD_REQUIRE(std::is_floating_point_v<T>,
                   "gatefold: the element type of a model must be float or double, for example init<float, Cpu>(ctx, "
                   "seed) or Trainer{..., Seed{1}, Element<double>{}}; see docs/how-to/your_data.md");
  static constexpr bool fits = std::is_floating_point_v<T>;
};

/// The type of a function parameter from which no template argument is deduced.
template <class V>
using NonDeduced = std::type_identity_t<V>;

/// An extra input of a policy that has no default. A call that does not set it does not compile.
template <class V>
struct Required {
  V value;
  Required(V v) : value(v) {}
  template <class Given = V>
  Required() : value{} {
    GATEFOLD_REQUIRE(
        (!std::is_same_v<Given, V>),
        "gatefold: an extra input that has no default is missing: set it in the extra, the last argument of "
        "forward, infer and step; see docs/reference/inputs.md#inputs-of-its-own");
  }
};

/// Returns the extra inputs of layer l of a stack, with separate random numbers (Noise) for every layer. If the extra
/// inputs have a function `at`, returns `extra.at(l)`. Otherwise calls at_layer for each part (extra_parts.hpp), and
/// copies the other members.
template <class E>
E at_layer(const E& extra, Index l) {
  if constexpr (detail_::hook::extra::at<const E>()) {
    return extra.at(l);
  } else {
    E at = extra;
    detail_::lookup::for_each_part(at, [&](auto& part) { part = at_layer(part, l); });
    return at;
  }
}

/// Returns the extra inputs for a second or later evaluation of a layer in one pass. Auxiliary losses must not be
/// counted again in it. If the extra inputs have a function `without_auxiliary`, returns its result. Otherwise calls
/// without_auxiliary for each part.
template <class E>
E without_auxiliary(const E& extra) {
  if constexpr (detail_::hook::extra::without_auxiliary<const E>()) {
    return extra.without_auxiliary();
  } else {
    E without = extra;
    detail_::lookup::for_each_part(without, [](auto& part) { part = without_auxiliary(part); });
    return without;
  }
}

/// Returns the initial parameters of a policy, or `Nothing` if the policy has no Params.
template <class T, class B, class P>
Params<P, T, B> init_params(const P& policy, typename B::Context& ctx, Seed seed) {
  if constexpr (detail_::named::Params<P>() && Element<T>::fits) {
    const auto here = ctx.here();
    return policy.template init<T, B>(ctx, seed);
  } else {
    return {};
  }
}

/// Returns a copy of the policy. If its model dimension is 0, sets it to `model_dim`: by the function `with_model_dim`
/// if the policy has one, otherwise in the parts of the gate.
/// @throws ArgumentError if the policy or a part has a different model dimension
template <class P>
P with_model_dim(const P& policy, Index model_dim) {
  if constexpr (detail_::hook::any::with_model_dim<P>()) {
    return policy.with_model_dim(model_dim);
  } else {
    P filled = policy;
    detail_::lookup::for_each_gate_part(filled, [&](auto& part) { part = with_model_dim(part, model_dim); });
    return filled;
  }
}

/// Returns a copy of the policy. If its number of experts is 0, sets it to `experts`: by the function `with_experts` if
/// the policy has one, otherwise by the option `experts` and in the parts of the gate.
/// @throws ArgumentError if the policy or a part has a different number of experts
template <class P>
P with_experts(const P& policy, Index experts) {
  if constexpr (detail_::hook::any::with_experts<P>()) {
    return policy.with_experts(experts);
  } else {
    P filled = policy;
    if constexpr (requires { filled.experts = experts; }) {
      expect(policy.experts == 0 || policy.experts == experts, "Gate", "experts",
             Joined{experts, " (the number of experts in the other parts of the model), or 0 to take that number"},
             policy.experts);
      filled.experts = experts;
    }
    detail_::lookup::for_each_gate_part(filled, [&](auto& part) { part = with_experts(part, experts); });
    return filled;
  }
}

namespace detail_::policy {

struct Always {
  bool operator()() const { return true; }
};

}  // namespace detail_::policy

/// Calls `params.adapt(ctx, grads)` of every pack (struct of tensors) that has this function. `adapt` updates
/// parameters by a rule that is not a gradient step. It reads the values that backward wrote to `grads`, for example a
/// count of picks. Packs inside a pack with `adapt` are not visited. A Trainer calls adapt_params after each step.
/// @param adapts  called once for each pack with adapt, in order; if it returns false, that pack is skipped
template <class C, class P, class Adapts = detail_::policy::Always>
void adapt_params(C& ctx, P& params, P& grads, const Adapts& adapts = {}) {
  if constexpr (detail_::hook::params::adapt<P, C, P>()) {
    if (adapts()) params.adapt(ctx, grads);
  } else if constexpr (!detail_::pack::is_tensor<P>) {
    if constexpr (detail_::pack::is_vector<P>)
      expect(params.size() == grads.size(), "adapt_params", "grads: size of a vector of packs",
             Joined{params.size(), ", as in params"}, grads.size());
    if constexpr (detail_::pack::check<P>())
      detail_::pack::each_part([&](auto, auto& p, auto& g) { adapt_params(ctx, p, g, adapts); }, params, grads);
  }
}

namespace detail_::lookup {

template <class B>
auto packed_weights() {
  if constexpr (requires { typename B::PackedWeights; }) {
    return std::type_identity<typename B::PackedWeights>{};
  } else {
    return std::type_identity<Nothing<float, B>>{};
  }
}

}  // namespace detail_::lookup

/// Parameters for inference only, made by `freeze`. Besides the parameters, it has packed copies of the expert weights
/// [E, rows, columns], in the order in which the matrix products of the backend read them. You can pass it to `infer`
/// instead of Params.
template <class P, class B>
struct FrozenParams {
  P params;  // do not change these: the packed copies would keep the old values
  // Packed copies of the tensors [experts, rows, columns] of params. In a FrozenDecoder, also of the output layer.
  typename decltype(detail_::lookup::packed_weights<B>())::type packed;
};

/// Returns the parameters of a model from Params or FrozenParams.
template <class P>
const P& model_params(const P& params) {
  return params;
}
template <class P, class B>
const P& model_params(const FrozenParams<P, B>& frozen) {
  return frozen.params;
}

namespace detail_::lookup {

/// Calls run(). If the parameters are frozen, matrix products of the context read their packed weights during the call.
template <class C, class P, class Run>
void with_packed(C&, const P&, const Run& run) {
  run();
}
template <class C, class P, class B, class Run>
void with_packed(C& ctx, const FrozenParams<P, B>& frozen, const Run& run) {
  if constexpr (requires { ctx.use(frozen.packed); }) {
    const auto scope = ctx.use(frozen.packed);
    run();
  } else {
    run();
  }
}

}  // namespace detail_::lookup

}  // namespace gatefold
