#include "network.hpp"

namespace language {

// All rules in one file: what their networks share is compiled once.
std::unique_ptr<Model> make_model(const Options& o, Index vocabulary) {
  using gatefold::update::HeavyBall, gatefold::update::Plain;
  if (o.update == "plain") return std::make_unique<Network<Plain>>(o, vocabulary, Plain{});
  return std::make_unique<Network<HeavyBall>>(o, vocabulary, HeavyBall{.mu = o.mu, .gamma = o.gamma});
}

}  // namespace language
