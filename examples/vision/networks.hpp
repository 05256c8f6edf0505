#pragma once

#include <memory>

#include "network.hpp"

namespace images {

template <class B>
std::unique_ptr<Model> make_vmoe(const Options& o) {
  return network<B>(o, [&](bool training) {
    return vmoe_every_2(sizes_of(o), heavy_ball_of(o), Mixture{gate_of(o, training), expert_of(o)}, expert_of(o));
  });
}

template <class B>
std::unique_ptr<Model> make_robust(const Options& o) {
  return network<B>(o, [&](bool training) {
    return vmoe_every_2(sizes_of(o), update::Robust{}, Mixture{gate_of(o, training), expert_of(o)}, expert_of(o));
  });
}

template <class B>
std::unique_ptr<Model> make_similar(const Options& o) {
  return network<B>(o, [&](bool training) {
    const VMoe gate = gate_of(o, training);
    const SimilarityAware<VMoe> similar{.scores = gate.scores,
                                        .mixing = {.tau = o.tau, .causal = false},
                                        .selection = gate.selection,
                                        .auxiliary = gate.auxiliary};
    return vmoe_every_2(sizes_of(o), heavy_ball_of(o), Mixture{similar, expert_of(o)}, expert_of(o));
  });
}

template <class B>
std::unique_ptr<Model> make_attending(const Options& o) {
  return network<B>(o, [&](bool training) {
    const VMoe gate = gate_of(o, training);
    const AttentionAware<VMoe> attending{
        .scores = gate.scores, .mixing = {}, .selection = gate.selection, .auxiliary = gate.auxiliary};
    return vmoe_every_2<vision::Traced>(sizes_of(o), heavy_ball_of(o), Mixture{attending, expert_of(o)}, expert_of(o));
  });
}

template <class B>
std::unique_ptr<Model> make_soft(const Options& o) {
  return network<B>(o, [&](bool) {
    return soft_moe_model(sizes_of(o), heavy_ball_of(o),
                          Mixture{SoftMoe{.count = o.experts, .slots = o.k}, expert_of(o)}, expert_of(o));
  });
}

template <class B>
std::unique_ptr<Model> make_linear(const Options& o) {
  return network<B>(o, [](bool) { return Linear{.model_dim = kPixels, .output_dim = kClasses}; });
}

/// Makes a network with the router and the update rule of the options.
template <class B>
std::unique_ptr<Model> make_network(const Options& o) {
  if (o.update == "robust") return make_robust<B>(o);
  if (o.router == "similarity") return make_similar<B>(o);
  if (o.router == "attention") return make_attending<B>(o);
  if (o.router == "soft") return make_soft<B>(o);
  if (o.router == "linear") return make_linear<B>(o);
  return make_vmoe<B>(o);
}

}  // namespace images
