#include "network.hpp"

std::unique_ptr<images::Model> images::make_vmoe(const Options& o) {
  return network(o, [&](bool training) {
    return vmoe_every_2(sizes_of(o), heavy_ball_of(o), Mixture{gate_of(o, training), expert_of(o)}, expert_of(o));
  });
}
