#pragma once

#include <algorithm>
#include <cstddef>
#include <gatefold/papers/expert_outputs.hpp>
#include <gatefold/papers/jacobian.hpp>
#include <gatefold/papers/norm_rank.hpp>
#include <gatefold/papers/pareto_gap.hpp>
#include <memory>
#include <utility>
#include <vector>

#include "../language/network.hpp"
#include "mixture.hpp"
#include "models.hpp"

namespace studies::momentum {

using namespace gatefold;

inline auto switch_of(const Setting& s, Index vocabulary, const Rule& rule) {
  return switch_model(lm::sizes(s, vocabulary), rule, mixture(s));
}

/// A language model that also gives measurements of each layer.
template <class B>
class Switch final : public lm::Network<B, decltype(switch_of(Setting{}, 0, Rule{}))> {
  using Base = lm::Network<B, decltype(switch_of(Setting{}, 0, Rule{}))>;
  using Base::ctx, Base::saved, Base::setting, Base::trainer, Base::y;

  // The model is Chain{embedding, RelativeKeys{…, stack}, norm}. RelativeKeys holds the position keys and contains the
  // stack, so get<1> leads to the stack. A layer of the stack is Chain{attention, mixture}.
  const auto& layer(Index l) const { return std::get<1>(saved.layers).layers[static_cast<std::size_t>(l)]; }
  const auto& kept(Index l) const { return std::get<1>(layer(l).layers); }
  const auto& stream(Index l) const { return layer(l).between[0]; }
  const auto& learned(Index l) const {
    return std::get<1>(std::get<1>(trainer.model().layers).layer.layers[static_cast<std::size_t>(l)].layers);
  }

 public:
  using Base::Base;

  /// In addition to the routing, computes the mean norm of each mixture's output, and the rank of the picked experts
  /// when all experts are ordered by the norm of their outputs.
  std::vector<lm::Routing> routing(const lm::Ids& x) override {
    std::vector<lm::Routing> all = Base::routing(x);
    const auto layer = mixture(setting);
    Tensor<float, 2, B> u(y.extent(0), setting.dim);
    for (Index l = 0; l < setting.depth; ++l) {
      const auto& seen = kept(l).calls[0];
      const auto& params = learned(l).branch.branch.branch;
      gatefold::infer(layer, ctx, params, seen.normed, u);
      const auto outputs = expert_outputs(ctx, layer, params, seen.normed.view());
      lm::Routing& of = all[static_cast<std::size_t>(l)];
      of.norm = metric::mean_norm(ctx, u.view());
      of.rank = metric::norm_rank(ctx, seen.branch.plan, outputs.view());
    }
    return all;
  }

  std::vector<lm::Direction> directions(const lm::Ids& x) override {
    this->forward(x);
    std::vector<lm::Direction> all;
    for (Index l = 0; l < setting.depth; ++l) {
      const auto& seen = kept(l).calls[0];
      const auto outputs = expert_outputs(ctx, mixture(setting), learned(l).branch.branch.branch, seen.normed.view());
      const auto weights = metric::gate_weights(ctx, seen.branch.plan);
      const auto mean = metric::pareto_gap(ctx, outputs.view(), weights.view()).mean;
      all.push_back({mean.least, mean.normalised, mean.cosine});
    }
    return all;
  }

  /// Returns the Jacobians of each mixture with its layer norm, at up to 16 words that are far apart.
  std::vector<std::vector<lm::Matrix>> jacobians(const lm::Ids& x) override {
    this->forward(x);
    const PreNorm branch{LayerNorm{}, Dropout{0, mixture(setting)}};
    const Index count = std::min<Index>(16, y.extent(0)), apart = y.extent(0) / count;
    std::vector<std::vector<lm::Matrix>> all(static_cast<std::size_t>(setting.depth));
    for (Index l = 0; l < setting.depth; ++l)
      for (Index i = 0; i < count; ++i) {
        const auto at = stream(l).view().rows(i * apart, 1);
        const auto j = jacobian(ctx, branch, learned(l).branch, View<const float, 2, B>(at));
        all[static_cast<std::size_t>(l)].push_back(training::to_host(ctx, j));
      }
    return all;
  }
};

template <class B>
std::unique_ptr<Model> switch_on(const Setting& s, Index vocabulary, const Rule& rule, Seed seed) {
  return std::make_unique<Switch<B>>(switch_of(s, vocabulary, rule), s, vocabulary, seed);
}

}  // namespace studies::momentum
