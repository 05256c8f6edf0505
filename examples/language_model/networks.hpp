#pragma once

#include <memory>

#include "../training/one_of.hpp"
#include "network.hpp"

namespace language {

/// All update rules. One network, which is compiled once, has the rule that is chosen at run time.
using Rule = training::OneOf<update::Plain, update::HeavyBall, update::First<update::Adam, update::HeavyBall>,
                             update::Robust, update::Nesterov, update::TimeVarying>;

inline Rule rule_of(const Options& o) {
  using namespace gatefold::update;
  const HeavyBall heavy_ball{.mu = o.mu, .gamma = o.gamma};
  if (o.update == "heavy-ball") return {heavy_ball};
  if (o.update == "adam") return {First{Adam{}, heavy_ball}};
  if (o.update == "robust") return {Robust{}};
  if (o.update == "nesterov") return {Nesterov{.mu = o.mu, .gamma = o.gamma}};
  if (o.update == "time-varying") return {TimeVarying{.gamma = o.gamma}};
  return {Plain{}};
}

/// Makes a network with the update rule, the layout and the backend of the options.
/// @tparam Bf16  the backend if options.backend ends with `-bf16`
template <class B, class Bf16>
std::unique_ptr<Model> make_network(const Options& o, Index vocabulary) {
  const auto on = [&]<class Where>(Where) { return make_with_layout<Where>(o, vocabulary, rule_of(o), OneProcess{}); };
  return o.backend.ends_with("-bf16") ? on(Bf16{}) : on(B{});
}

}  // namespace language
