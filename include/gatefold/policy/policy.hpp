#pragma once

#include <type_traits>
#include <utility>

#include "gatefold/core/config.hpp"
#include "gatefold/core/error.hpp"
#include "gatefold/core/types.hpp"
#include "gatefold/policy/extra_parts.hpp"
#include "gatefold/policy/hooks.hpp"
#include "gatefold/tensor/pack.hpp"

/// What the library does with policies of every family. A policy is a plain aggregate of options; what it may have
/// besides is in hooks.hpp.
namespace gatefold {

/// Names an element type where it cannot be deduced: `Trainer{ctx, model, loss, optimizer, Seed{1},
/// Element<double>{}}`.
template <class T>
struct Element {
  GATEFOLD_REQUIRE(std::is_floating_point_v<T>,
                   "gatefold: a model computes in float or double, and these are its elements: init<float, Cpu>(ctx, "
                   "seed), Trainer{..., Seed{1}, Element<double>{}}; see docs/how-to/your_data.md");
  static constexpr bool fits = std::is_floating_point_v<T>;
};

/// Parameters that are not deduced from the argument.
template <class V>
using NonDeduced = std::type_identity_t<V>;

/// An extra input without a default: forgetting it does not compile.
template <class V>
struct Required {
  V value;
  Required(V v) : value(v) {}
  template <class Given = V>
  Required() : value{} {
    GATEFOLD_REQUIRE(
        (!std::is_same_v<Given, V>),
        "gatefold: an extra input that has no default is missing: name it in the extra, the last argument of "
        "forward, infer and step; see docs/reference/inputs.md#inputs-of-its-own");
  }
};

/// The extra inputs of layer l of a stack: noise is forked, everything else stays. Those that do not say so
/// themselves are those of their parts (extra_parts.hpp).
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

/// The extra inputs of a further evaluation of the same layer: auxiliary losses count once.
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

/// Initial parameters; `Nothing` when the policy learns nothing.
template <class T, class B, class P>
Params<P, T, B> init_params(const P& policy, typename B::Context& ctx, Seed seed) {
  if constexpr (detail_::named::Params<P>() && Element<T>::fits) {
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
  if constexpr (detail_::hook::any::with_model_dim<P>()) {
    return policy.with_model_dim(model_dim);
  } else {
    return policy;
  }
}

/// Fill the expert count of a policy that left it 0: its member `experts`, unless it has a function of this name.
/// @throws ArgumentError when the policy names another one
template <class P>
P with_experts(const P& policy, Index experts) {
  if constexpr (detail_::hook::any::with_experts<P>()) {
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

namespace detail_::policy {

struct Always {
  bool operator()() const { return true; }
};

}  // namespace detail_::policy

/// Let every pack that adapts by a rule of its own do so: calls `params.adapt(ctx, grads)` where a pack has it. What
/// stands in `grads` there is what backward left, a count of picks for instance. A Trainer calls it after each step.
/// @param adapts  called once for each such pack, in order: whether it adapts now
template <class C, class P, class Adapts = detail_::policy::Always>
void adapt_params(C& ctx, P& params, P& grads, const Adapts& adapts = {}) {
  if constexpr (detail_::hook::params::adapt<P, C, P>()) {
    if (adapts()) params.adapt(ctx, grads);
  } else if constexpr (detail_::pack::is_vector<P>) {
    expect(params.size() == grads.size(), "adapt_params", "parts", params.size(), grads.size());
    for (std::size_t i = 0; i < params.size(); ++i) adapt_params(ctx, params[i], grads[i], adapts);
  } else if constexpr (detail_::pack::is_tuple<P>) {
    const auto parts = [&]<std::size_t... At>(std::index_sequence<At...>) {
      (adapt_params(ctx, std::get<At>(params), std::get<At>(grads), adapts), ...);
    };
    parts(std::make_index_sequence<std::tuple_size_v<P>>{});
  } else if constexpr (!detail_::pack::is_tensor<P>) {
    if constexpr (detail_::pack::check<P>())
      P::each([&](std::string_view, auto& p, auto& g) { adapt_params(ctx, p, g, adapts); }, params, grads);
  }
}

}  // namespace gatefold
