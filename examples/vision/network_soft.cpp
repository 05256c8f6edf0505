#include "network.hpp"

std::unique_ptr<images::Model> images::make_soft(const Options& o) {
  return network(o, [&](bool) {
    return soft_moe_model(sizes_of(o), heavy_ball_of(o),
                          Mixture{SoftMoe{.count = o.experts, .slots = o.k}, expert_of(o)}, expert_of(o));
  });
}
