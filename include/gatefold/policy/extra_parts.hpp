#pragma once

#include <tuple>

#include "gatefold/policy/noise.hpp"

namespace gatefold::lookup {

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
  if constexpr (requires { extra.noise = Noise{}; }) f(extra.noise);
}
/// Call f for extra inputs and all those within.
template <class E, class F>
void for_each_extra(E& extra, F&& f) {
  f(extra);
  for_each_part(extra, [&](auto& part) { for_each_extra(part, f); });
}

}  // namespace gatefold::lookup
