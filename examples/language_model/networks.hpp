#pragma once

#include <memory>

#include "network.hpp"

namespace language {

/// Makes a network with the update rule of the options. All rules are in one file, so that their common parts compile
/// once.
/// @tparam Bf16  the backend if options.backend ends with `-bf16`. The update rule must then be heavy ball
template <class B, class Bf16>
std::unique_ptr<Model> make_network(const Options& o, Index vocabulary) {
  using namespace gatefold::update;
  const HeavyBall heavy_ball{.mu = o.mu, .gamma = o.gamma};
  const auto on = [&]<class Where, class RuleT>(Where, const RuleT& rule) -> std::unique_ptr<Model> {
    return std::make_unique<Network<Where, RuleT, OneProcess>>(o, vocabulary, rule, OneProcess{});
  };
  if (o.backend.ends_with("-bf16")) return on(Bf16{}, heavy_ball);
  const auto with = [&](const auto& rule) { return on(B{}, rule); };
  if (o.update == "heavy-ball") return with(heavy_ball);
  if (o.update == "adam") return with(First{Adam{}, heavy_ball});
  if (o.update == "robust") return with(Robust{});
  if (o.update == "nesterov") return with(Nesterov{.mu = o.mu, .gamma = o.gamma});
  if (o.update == "time-varying") return with(TimeVarying{.gamma = o.gamma});
  return with(Plain{});
}

}  // namespace language
