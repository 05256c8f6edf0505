#pragma once

#include <concepts>
#include <tuple>
#include <type_traits>
#include <utility>

#include "gatefold/policy/hooks.hpp"
#include "gatefold/policy/named.hpp"
#include "gatefold/policy/noise.hpp"

/// Functions for policies of every family. A policy is a struct of options with member functions, for example a gate,
/// an expert or an update rule. Optional members of policies are in hooks.hpp.
///
/// Extra inputs are inputs in addition to the items, for example sequence length, mask and noise. They are nested
/// structs, one for each part of the model. This header has functions that visit these structs, and checks of the
/// members that the library sets. It also defines frozen parameters, and the types that the checks of compositions use.
namespace gatefold {

/// Each function in this namespace, for example length<E, V>() or valid<E, V>(), returns true if the type E of extra
/// inputs has a data member of this name to which a V can be assigned. If the member has a different type, a
/// static_assert names the member and the type that it must have.
namespace detail_::hook::input {

#define GATEFOLD_INPUT(member, type)                                                                              \
  template <class E, class V>                                                                                     \
  constexpr bool member() {                                                                                       \
    constexpr bool fits = requires(std::remove_const_t<E> & extra, const V& value) { extra.member = value; };     \
    GATEFOLD_EXPECT(fits || !detail_::named::member<std::remove_const_t<E>>(),                                    \
                    "gatefold: the library assigns to the member " #member " of an Extra, so declare it as " type \
                    ", not const; see docs/reference/inputs.md#inputs-of-its-own")                                \
    return fits;                                                                                                  \
  }
GATEFOLD_INPUT(length, "Index")
GATEFOLD_INPUT(valid, "View<const T, 1, B> with the T and B of the model")
GATEFOLD_INPUT(memory, "AttentionMemory<T, B> with the T and B of the model")
GATEFOLD_INPUT(cache, "CacheView<T, B> with the T and B of the model")
GATEFOLD_INPUT(noise, "Noise")
GATEFOLD_INPUT(traced, "bool")
GATEFOLD_INPUT(relative, "View<const T, 2, B> with the T and B of the model")
#undef GATEFOLD_INPUT

}  // namespace detail_::hook::input

namespace detail_::lookup {

/// Calls f(part) for each part of a gate or of its extra inputs, in a fixed order: the members primary, secondary,
/// scores, mixing, selection. Skips members that do not exist.
template <class G, class F>
void for_each_gate_part(G& of, F&& f) {
  if constexpr (requires { of.primary; }) f(of.primary);
  if constexpr (requires { of.secondary; }) f(of.secondary);
  if constexpr (requires { of.scores; }) f(of.scores);
  if constexpr (requires { of.mixing; }) f(of.mixing);
  if constexpr (requires { of.selection; }) f(of.selection);
}
/// Calls f(part) for each part of the extra inputs, in a fixed order: the elements of the tuple `layers`, the members
/// attention, layer, branch, the parts that for_each_gate_part visits, and noise. Skips members that do not exist.
template <class E, class F>
void for_each_part(E& extra, F&& f) {
  if constexpr (requires { std::tuple_size<decltype(extra.layers)>::value; })
    std::apply([&](auto&... part) { (f(part), ...); }, extra.layers);
  if constexpr (requires { extra.attention; }) f(extra.attention);
  if constexpr (requires { extra.layer; }) f(extra.layer);
  if constexpr (requires { extra.branch; }) f(extra.branch);
  for_each_gate_part(extra, f);
  if constexpr (detail_::hook::input::noise<E, Noise>()) f(extra.noise);
}
/// Calls f for the extra inputs, for each of their parts, and recursively for the parts of the parts.
template <class E, class F>
void for_each_extra(E& extra, F&& f) {
  f(extra);
  for_each_part(extra, [&](auto& part) { for_each_extra(part, f); });
}

}  // namespace detail_::lookup

/// Returns the extra inputs for a training step. Every Noise in them gets training = true; policies with dropout then
/// throw if their rate is not 0 and they have no random numbers. Trainer.accumulate and evaluation do not use this
/// function.
template <class E>
E for_training(E extra) {
  detail_::lookup::for_each_extra(extra, []<class P>(P& part) {
    if constexpr (std::is_same_v<P, Noise>) part.training = true;
  });
  return extra;
}

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

/// An extra input without a default. A call that does not set it does not compile.
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
/// inputs have a function `at`, returns `extra.at(l)`. Otherwise calls at_layer for each part, and copies the other
/// members.
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

/// Returns the extra inputs for a second or later evaluation of a layer in one pass. Such an evaluation must not count
/// auxiliary losses again. If the extra inputs have a function `without_auxiliary`, returns its result. Otherwise calls
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
  // Packed copies of the tensors [experts, rows, columns] of params. In a FrozenDecoder, there is also a copy of the
  // output layer. This member also owns the elements of params that are in a mapped file (io::load_frozen).
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

namespace detail_::policy {

/// A struct with one member for each argument type that many functions of policies take: a context, views and groups.
/// Concepts use the members to test whether a function can be called with arguments of these types. A Probe is never
/// constructed.
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

// Defines the function init of a composition, which calls init_of_parts(ctx, seed) if the parts fit. The macro ends
// with the declarator of init_of_parts; write the body of init_of_parts after the macro.
#define GATEFOLD_INIT(Composition)                                               \
  template <class T, class B>                                                    \
  Params<T, B> init(typename B::Context& ctx, ::gatefold::Seed seed) const {     \
    if constexpr (::gatefold::detail_::policy::parts_fit<Composition, T, B>()) { \
      return init_of_parts<T, B>(ctx, seed);                                     \
    } else {                                                                     \
      return {};                                                                 \
    }                                                                            \
  }                                                                              \
  template <class T, class B>                                                    \
  Params<T, B> init_of_parts(typename B::Context& ctx, ::gatefold::Seed seed) const

/// True for a policy without Params, or with a function init<T, B>(ctx, seed) that returns its Params.
template <class P, class T, class B>
concept HasInit = !detail_::named::Params<P>() || requires(const P policy, typename B::Context& ctx) {
  { policy.template init<T, B>(ctx, Seed{}) } -> std::same_as<Params<P, T, B>>;
};

}  // namespace detail_::policy

}  // namespace gatefold
