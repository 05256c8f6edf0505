#include "network.hpp"

std::unique_ptr<images::Model> images::make_attending(const Options& o) {
  return network(o, [&](bool training) {
    const VMoe gate = gate_of(o, training);
    const AttentionAware<VMoe> attending{
        .scores = gate.scores, .mixing = {}, .selection = gate.selection, .auxiliary = gate.auxiliary};
    return vmoe_every_2<vision::Traced>(sizes_of(o), heavy_ball_of(o), Mixture{attending, expert_of(o)}, expert_of(o));
  });
}
