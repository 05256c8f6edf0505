#pragma once

#include <tuple>

#include "gatefold/policy/noise.hpp"

namespace gatefold::lookup {

/// Call f for extra inputs and all those within, in the order of the parts that take them.
template <class E, class F>
void for_each_extra(E& extra, F&& f) {
  f(extra);
  if constexpr (requires { std::tuple_size<decltype(extra.layers)>::value; })
    std::apply([&](auto&... part) { (for_each_extra(part, f), ...); }, extra.layers);
  if constexpr (requires { extra.attention; }) for_each_extra(extra.attention, f);
  if constexpr (requires { extra.layer; }) for_each_extra(extra.layer, f);
  if constexpr (requires { extra.branch; }) for_each_extra(extra.branch, f);
  if constexpr (requires { extra.scores; }) for_each_extra(extra.scores, f);
  if constexpr (requires { extra.mixing; }) for_each_extra(extra.mixing, f);
  if constexpr (requires { extra.selection; }) for_each_extra(extra.selection, f);
  if constexpr (requires { extra.noise = Noise{}; }) for_each_extra(extra.noise, f);
}

}  // namespace gatefold::lookup
