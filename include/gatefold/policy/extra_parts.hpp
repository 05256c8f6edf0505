#pragma once

#include <tuple>
#include <type_traits>

#include "gatefold/core/config.hpp"
#include "gatefold/policy/named.hpp"
#include "gatefold/policy/noise.hpp"

/// The parts of extra inputs, and what the library fills in them.
namespace gatefold {

/// Whether an Extra has a data member that takes a V: one of the name that takes none stops the compiler.
namespace detail_::hook::input {

#define GATEFOLD_INPUT(member, type)                                                                                  \
  template <class E, class V>                                                                                         \
  constexpr bool member() {                                                                                           \
    constexpr bool fits = requires(std::remove_const_t<E> & extra, const V& value) { extra.member = value; };         \
    GATEFOLD_EXPECT(fits || !detail_::named::member<std::remove_const_t<E>>(),                                        \
                    "gatefold: " #member " of an Extra must be " type                                                 \
                    ", of the elements and backend of what fills it; see docs/reference/inputs.md#inputs-of-its-own") \
    return fits;                                                                                                      \
  }
GATEFOLD_INPUT(length, "Index")
GATEFOLD_INPUT(valid, "View<const T, 1, B>")
GATEFOLD_INPUT(memory, "AttentionMemory<T, B>")
GATEFOLD_INPUT(noise, "Noise")
GATEFOLD_INPUT(traced, "bool")
GATEFOLD_INPUT(relative, "View<const T, 2, B>")
#undef GATEFOLD_INPUT

}  // namespace detail_::hook::input

namespace detail_::lookup {

/// Call f for the extra inputs of each part, in the order of the parts that take them.
template <class E, class F>
void for_each_part(E& extra, F&& f) {
  if constexpr (requires { std::tuple_size<decltype(extra.layers)>::value; })
    std::apply([&](auto&... part) { (f(part), ...); }, extra.layers);
  if constexpr (requires { extra.attention; }) f(extra.attention);
  if constexpr (requires { extra.layer; }) f(extra.layer);
  if constexpr (requires { extra.branch; }) f(extra.branch);
  if constexpr (requires { extra.scores; }) f(extra.scores);
  if constexpr (requires { extra.mixing; }) f(extra.mixing);
  if constexpr (requires { extra.selection; }) f(extra.selection);
  if constexpr (detail_::hook::input::noise<E, Noise>()) f(extra.noise);
}
/// Call f for extra inputs and all those within.
template <class E, class F>
void for_each_extra(E& extra, F&& f) {
  f(extra);
  for_each_part(extra, [&](auto& part) { for_each_extra(part, f); });
}

}  // namespace detail_::lookup

/// Extra inputs of a training step, in which dropout without numbers is an error. Gradients without a step
/// (Trainer.accumulate) and evaluation do not use it.
template <class E>
E for_training(E extra) {
  detail_::lookup::for_each_extra(extra, []<class P>(P& part) {
    if constexpr (std::is_same_v<P, Noise>) part.training = true;
  });
  return extra;
}

}  // namespace gatefold
