#pragma once

#include <tuple>
#include <type_traits>

#include "gatefold/policy/named.hpp"
#include "gatefold/policy/noise.hpp"

/// Extra inputs are the inputs of a model in addition to the items, for example sequence length, mask and noise. The
/// extra inputs of a model are nested structs, one for each part of the model. This header has functions that visit
/// these structs, and checks of the members that the library sets.
namespace gatefold {

/// Each function in this namespace, for example length<E, V>() or valid<E, V>(), returns true if the type E of extra
/// inputs has a data member of this name to which a V can be assigned. If the member has a different type, a
/// static_assert names it.
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
/// attention, layer, branch, those of for_each_gate_part, and noise. Skips members that do not exist.
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

/// Returns the extra inputs for a training step. Every Noise in them gets training = true; Dropout then throws if it
/// has no random numbers. Trainer.accumulate and evaluation do not use this function.
template <class E>
E for_training(E extra) {
  detail_::lookup::for_each_extra(extra, []<class P>(P& part) {
    if constexpr (std::is_same_v<P, Noise>) part.training = true;
  });
  return extra;
}

}  // namespace gatefold
