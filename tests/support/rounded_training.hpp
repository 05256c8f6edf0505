#pragma once

#include <cstddef>
#include <cstring>
#include <utility>
#include <vector>

#include "gatefold/backend/initial_values.hpp"
#include "gatefold/expert/activation.hpp"
#include "gatefold/expert/mlp.hpp"
#include "gatefold/gate/gates.hpp"
#include "gatefold/layer/mixture.hpp"
#include "gatefold/layer/recompute.hpp"
#include "gatefold/layer/residual.hpp"
#include "gatefold/layer/stack.hpp"
#include "gatefold/loss/mean_squared_error.hpp"
#include "gatefold/optim/adamw.hpp"
#include "gatefold/optim/clip.hpp"
#include "gatefold/optim/sgd.hpp"
#include "gatefold/train/in_groups.hpp"
#include "gatefold/train/trainer.hpp"
#include "gatefold/update/momentum.hpp"

/// Trains with and without copies of rounded weights. The results must have the same bits, even if a test changes
/// parameters between steps or parts of a step.
namespace gatefold::support::rounded_training {

inline constexpr Index items = 10, dim = 12, layers = 2, banks = 2 * layers;

inline auto model(bool recompute = false) {
  return Stack{Recompute{Residual{update::HeavyBall{.mu = 0.5},
                                  Mixture{SoftmaxTopK{.scores = {.experts = 3}, .selection = {.k = 2}},
                                          Mlp<Gelu>{.model_dim = dim, .hidden_dim = 9}}},
                         recompute},
               layers};
}
/// Returns an optimizer that changes only parameters that are not weights.
inline auto frozen_weights() { return InGroups{is_weight, optim::Sgd{.lr = 0}, optim::AdamW{.lr = 0.05}}; }

template <class B>
struct AppendBytes {
  typename B::Context& ctx;
  std::vector<float>& all;
  void operator()(const Name&, const auto& t) const {
    std::vector<float> part(static_cast<std::size_t>(t.size()));
    B::to_host(ctx, t.size(), t.view().data(), part.data());
    all.insert(all.end(), part.begin(), part.end());
  }
};
template <class B, class... P>
std::vector<float> values(typename B::Context& ctx, const P&... packs) {
  std::vector<float> all;
  (for_each_tensor(AppendBytes<B>{ctx, all}, packs), ...);
  return all;
}
inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

/// These functors change parameters between two parts of a step, or between two steps. This one changes nothing.
struct Nobody {
  void operator()(auto&, Index) const {}
};
/// Changes one weight, by a single write.
struct OneWeight {
  void operator()(auto& trainer, Index time) const {
    const float value = 0.25f + 0.5f * static_cast<float>(time);
    auto& up = trainer.params.layers[1].layer.branch.expert.up;
    std::decay_t<decltype(trainer.context())>::Backend::from_host(trainer.context(), 1, &value, up.data() + 5);
  }
};
/// Changes all parameters: copies random numbers into them.
struct CopyBack {
  void operator()(auto& trainer, Index) const {
    auto first = zeros_like(trainer.context(), trainer.params);
    for_each_tensor([&](const Name&, auto& t) { fill_uniform(trainer.context(), Seed{77}, -0.3, 0.3, t); }, first);
    copy_pack(trainer.context(), first, trainer.params);
  }
};
/// Replaces all parameters by tensors in different memory.
struct Replace {
  void operator()(auto& trainer, Index time) const {
    auto others = zeros_like(trainer.context(), trainer.params);
    copy_pack(trainer.context(), trainer.params, others);
    fill(trainer.context(), others.layers[0].layer.branch.expert.down.view(), 0.01f * static_cast<float>(time + 1));
    trainer.params = std::move(others);
  }
};

/// Trains with steps of one part and of three parts. Returns parameters, gradients and losses.
/// @param count  called as count(trainer, time) after each step and each part
template <class B, class O, class W = Nobody, class Count = Nobody>
std::vector<float> train(typename B::Context& ctx, const O& optimizer, bool keeps, bool recompute = false,
                         const W& write = {}, const Count& count = {}) {
  Trainer trainer{ctx, model(recompute), MeanSquaredError{}, optimizer, Seed{1}};
  trainer.keeps_rounded = keeps;
  std::vector<float> losses;
  Index time = 0;
  for (Index step = 0; step < 4; ++step) {
    const Index parts = step % 2 == 0 ? 1 : 3;
    for (Index part = 0; part < parts; ++part, ++time) {
      const auto seed = static_cast<std::uint64_t>(10 * step + part + 2);
      const auto x = uniform_tensor<float>(ctx, Seed{seed}, 1, items, dim);
      const auto target = uniform_tensor<float>(ctx, Seed{seed + 100}, 1, items, dim);
      const double loss = part + 1 < parts ? trainer.accumulate(x, target) : trainer.step(x, target);
      losses.push_back(static_cast<float>(loss));
      losses.push_back(static_cast<float>(trainer.evaluate(x, target)));
      write(trainer, time);
      count(trainer, time);
    }
  }
  auto all = values<B>(ctx, trainer.params, trainer.grads);
  all.insert(all.end(), losses.begin(), losses.end());
  return all;
}

/// Returns true if training gives the same bits with and without copies.
template <class B, class O, class W = Nobody>
bool same_with_copies(const O& optimizer, bool recompute = false, const W& write = {}) {
  typename B::Context ctx;
  return same_bits(train<B>(ctx, optimizer, true, recompute, write), train<B>(ctx, optimizer, false, recompute, write));
}

}  // namespace gatefold::support::rounded_training
