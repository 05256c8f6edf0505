#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "dataset.hpp"
#include "model.hpp"

namespace images {

using namespace gatefold;

/// The sizes of the options' vision transformer on images of 28 · 28.
inline VisionSizes sizes_of(const Options& o) {
  return {.side = kSide,
          .patch = o.patch,
          .model_dim = o.dim,
          .heads = o.heads,
          .depth = o.depth,
          .classes = kClasses,
          .class_token = o.router != "soft",
          .dropout = o.dropout,
          .mean = 0.286,  // of the training pixels
          .deviation = 0.353};
}
inline Mlp<Gelu> expert_of(const Options& o) { return {.model_dim = o.dim, .hidden_dim = o.hidden}; }
/// Plain is heavy ball without momentum, to the bit.
inline update::HeavyBall heavy_ball_of(const Options& o) {
  if (o.update == "plain") return {.mu = 0, .gamma = 1};
  return {.mu = o.mu, .gamma = o.gamma};
}
/// V-MoE's: room for 1.05 times the even share in training, for four times in evaluation.
inline VMoe gate_of(const Options& o, bool training) {
  return published::vmoe({.experts = o.experts, .k = o.k, .factor = training ? 1.05 : 4});
}

/// A model whose gates may have other room in evaluation than in training, with the same parameters.
template <class ModelT>
class Network final : public Model {
 public:
  Network(const Options& o, const ModelT& training, const ModelT& evaluation)
      : ctx_(o.threads),
        trainer_(make_trainer(ctx_, o, training)),
        evaluated_(as_layer<float, Cpu>(evaluation)),
        gradient_(ctx_, evaluation, CrossEntropy{}),
        k_(o.k) {}

  double step(ReadPixels x, Labels labels) override {
    const Random at{trainer_.seed.fork(1), static_cast<std::uint64_t>(trainer_.state.step)};
    return trainer_.step(x, labels, extra_of<typename Trained::Extra>(Segment<float, Cpu>{.noise = {at}}));
  }
  Index steps() const override { return trainer_.state.step; }
  Index parameters() const override { return count_values(trainer_.params); }

  void classify(ReadPixels x, Pixels& logits) override {
    logits.resize(x.extent(0), evaluated_.out_dim());
    evaluated_.begin(ctx_, trainer_.params, x.extent(0), carry_);
    infer(evaluated_, ctx_, trainer_.params, x, carry_, logits);
  }
  std::vector<training::Routing> routing(ReadPixels x) override {
    Pixels logits(x.extent(0), evaluated_.out_dim());
    evaluated_.begin(ctx_, trainer_.params, x.extent(0), carry_);
    Saved<Evaluated, float, Cpu> saved;  // as large as training's: it goes
    evaluated_.forward(ctx_, trainer_.params, x, carry_, logits, saved);
    return training::routing(ctx_, saved, k_);
  }
  void attack(const Pgd& attack, Noise start, ReadPixels x, Labels labels, Pixels& y) override {
    y.resize(x.extent(0), x.extent(1));
    attack(
        ctx_, [&](ReadPixels at, View<float, 2, Cpu> d) { gradient_(trainer_.params, at, labels, d); }, x, start, y);
  }

  void save(const std::filesystem::path& path, const Metadata& metadata) const override {
    save_checkpoint(path, trainer_, metadata);
  }
  void load(const std::filesystem::path& path) override { load_checkpoint(path, trainer_); }

 private:
  static auto make_trainer(Cpu::Context& ctx, const Options& o, const ModelT& model) {
    return Trainer{ctx, model, CrossEntropy{},
                   optim::Scheduled{optim::Clipped{optim::AdamW{.lr = o.lr, .decay = o.decay}, o.clip},
                                    optim::WarmupCosine{.warmup = o.warmup, .total = o.steps, .floor = 0.02}},
                   Seed{o.seed}};
  }
  using Trained = decltype(make_trainer(std::declval<Cpu::Context&>(), std::declval<const Options&>(),
                                        std::declval<const ModelT&>()));
  using Evaluated = AsLayer<ModelT, float, Cpu>;

  Cpu::Context ctx_;
  Trained trainer_;
  Evaluated evaluated_;
  InputGradient<float, Cpu::Context, ModelT, CrossEntropy> gradient_;
  Index k_;
  Carry<Evaluated, float, Cpu> carry_;
};

/// @param make  make(training) is the model of either
template <class F>
std::unique_ptr<Model> network(const Options& o, const F& make) {
  return std::make_unique<Network<decltype(make(true))>>(o, make(true), make(false));
}

}  // namespace images
