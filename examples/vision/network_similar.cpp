#include "network.hpp"

std::unique_ptr<images::Model> images::make_similar(const Options& o) {
  return network(o, [&](bool training) {
    const VMoe gate = gate_of(o, training);
    const SimilarityAware<VMoe> similar{.scores = gate.scores,
                                        .mixing = {.tau = o.tau, .causal = false},
                                        .selection = gate.selection,
                                        .auxiliary = gate.auxiliary};
    return vmoe_every_2(sizes_of(o), heavy_ball_of(o), Mixture{similar, expert_of(o)}, expert_of(o));
  });
}
