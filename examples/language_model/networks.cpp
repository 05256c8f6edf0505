#include "network.hpp"

namespace language {

// All rules in one file: what their networks share is compiled once.
std::unique_ptr<Model> make_model(const Options& o, Index vocabulary) {
  using namespace gatefold::update;
  const HeavyBall heavy_ball{.mu = o.mu, .gamma = o.gamma};
  const auto on = [&]<class B, class RuleT>(B, const RuleT& rule) -> std::unique_ptr<Model> {
    return std::make_unique<Network<B, RuleT, OneProcess>>(o, vocabulary, rule, OneProcess{});
  };
  if (o.backend == "cpu-bf16") return on(CpuBf16{}, heavy_ball);
  const auto with = [&](const auto& rule) { return on(Cpu{}, rule); };
  if (o.update == "heavy-ball") return with(heavy_ball);
  if (o.update == "adam") return with(First{Adam{}, heavy_ball});
  if (o.update == "robust") return with(Robust{});
  if (o.update == "nesterov") return with(Nesterov{.mu = o.mu, .gamma = o.gamma});
  if (o.update == "time-varying") return with(TimeVarying{.gamma = o.gamma});
  return with(Plain{});
}

}  // namespace language
