#pragma once

#include <cstdint>
#include <gatefold/io.hpp>
#include <gatefold/papers/pgd.hpp>
#include <gatefold/policies.hpp>
#include <iterator>
#include <memory>
#include <utility>
#include <vector>

#include "../training/host.hpp"
#include "model.hpp"

namespace images {

using namespace gatefold;

/// Returns the sizes of the vision transformer on images of 28 · 28, from the options.
inline VisionSizes sizes_of(const Options& o) {
  return {.side = kSide,
          .patch = o.patch,
          .model_dim = o.dim,
          .heads = o.heads,
          .depth = o.depth,
          .classes = kClasses,
          .class_token = o.router != "soft",
          .dropout = o.dropout,
          .mean = 0.286,  // mean of the training pixels
          .deviation = 0.353};
}
inline Mlp<Gelu> expert_of(const Options& o) { return {.model_dim = o.dim, .hidden_dim = o.hidden}; }
/// Returns the update rule of the options. Plain is heavy ball without momentum, with the same bits.
inline update::HeavyBall heavy_ball_of(const Options& o) {
  if (o.update == "plain") return {.mu = 0, .gamma = 1};
  return {.mu = o.mu, .gamma = o.gamma};
}
/// Returns the gate of V-MoE. The capacity of each expert is 1.05 times the even share in training, and 4 times the
/// even share in evaluation.
inline VMoe gate_of(const Options& o, bool training) {
  return published::vmoe({.experts = o.experts, .k = o.k, .factor = training ? 1.05 : 4});
}

/// Cross-entropy of images with labels or with class probabilities (mixup), so that one trainer takes both.
struct LabelsOrProbabilities {
  CrossEntropy of_labels{};
  SoftCrossEntropy of_probabilities{};

  template <class T, class B>
  struct Target {
    View<const Index, 1, B> labels{};     // [N]; not read if there are probabilities
    View<const T, 2, B> probabilities{};  // [N, C]; empty: labels
    Index extent(int) const { return probabilities.empty() ? labels.extent(0) : probabilities.extent(0); }
  };
  /// Calls f(loss, target) for the loss and the target in use.
  template <class T, class B, class F>
  void visit(const Target<T, B>& target, const F& f) const {
    if (target.probabilities.empty()) {
      f(of_labels, target.labels);
    } else {
      f(of_probabilities, target.probabilities);
    }
  }
  template <class T, class B>
  void validate(In<T, 2, B> y, const Target<T, B>& target) const {
    visit<T, B>(target, [&](const auto& loss, auto of) { loss.template validate<T, B>(y, of); });
  }
  template <class T, class B>
  void forward(typename B::Context& ctx, In<T, 2, B> y, const Target<T, B>& target, Out<T, 1, B> value) const {
    visit<T, B>(target, [&](const auto& loss, auto of) { loss.template forward<T, B>(ctx, y, of, value); });
  }
  template <class T, class B>
  void backward(typename B::Context& ctx, In<T, 2, B> y, const Target<T, B>& target, Out<T, 2, B> dy) const {
    visit<T, B>(target, [&](const auto& loss, auto of) { loss.template backward<T, B>(ctx, y, of, dy); });
  }
};

/// A model whose gates can have a different capacity in evaluation than in training, with the same parameters.
/// @tparam B  Cpu or Cuda
template <class B, class ModelT>
class Network final : public Model {
 public:
  Network(const Options& o, const ModelT& training, const ModelT& evaluation)
      : ctx_(training::context<B>(o.threads)),
        trainer_(make_trainer(ctx_, o, training)),
        evaluated_(as_layer<float, B>(evaluation)),
        gradient_(ctx_, evaluation, CrossEntropy{}),
        k_(o.k) {}

  double step(ReadPixels x, Labels labels) override { return take_step(x, Target{.labels = here(labels)}); }
  double step(ReadPixels x, Probabilities targets) override {
    return take_step(x, Target{.probabilities = training::from_host(ctx_, targets.data(), probabilities_,
                                                                    std::ssize(targets) / kClasses, kClasses)});
  }
  Index steps() const override { return trainer_.state.step; }
  Index parameters() const override { return count_values(trainer_.params); }
  Summary summary() const override { return gatefold::summary(trainer_.layer()); }

  std::vector<float> classify(ReadPixels x) override {
    const auto pixels = here(x);
    begin(pixels);
    infer(evaluated_, ctx_, trainer_.params, pixels, carry_, y_);
    return training::to_host(ctx_, y_);
  }
  std::vector<training::Routing> routing(ReadPixels x) override {
    const auto pixels = here(x);
    begin(pixels);
    Saved<Evaluated, float, B> saved;  // local, so that its memory is freed before the next training step
    evaluated_.forward(ctx_, trainer_.params, pixels, carry_, y_, saved);
    return training::routing(ctx_, saved, k_);
  }
  Pixels attack(const Pgd& attack, Noise start, ReadPixels x, Labels labels) override {
    const auto pixels = here(x);
    const auto target = here(labels);
    attacked_.resize(pixels.extent(0), kPixels);
    attack(
        ctx_, [&](View<const float, 2, B> at, View<float, 2, B> d) { gradient_(trainer_.params, at, target, d); },
        pixels, start, attacked_);
    return training::to_host(ctx_, attacked_);
  }

  void save(const std::filesystem::path& path, const Metadata& metadata) const override {
    save_checkpoint(path, trainer_, metadata);
  }
  void load(const std::filesystem::path& path) override { load_checkpoint(path, trainer_); }

 private:
  using Target = LabelsOrProbabilities::Target<float, B>;

  static auto make_trainer(typename B::Context& ctx, const Options& o, const ModelT& model) {
    return Trainer{ctx, model, LabelsOrProbabilities{.of_labels = {.label_smoothing = o.label_smoothing}},
                   optim::Scheduled{optim::Clipped{optim::AdamW{.lr = o.lr, .decay = o.decay}, o.clip},
                                    optim::WarmupCosine{.warmup = o.warmup, .total = o.steps, .floor = 0.02}},
                   Seed{o.seed}};
  }
  using Trained = decltype(make_trainer(std::declval<typename B::Context&>(), std::declval<const Options&>(),
                                        std::declval<const ModelT&>()));
  using Evaluated = AsLayer<ModelT, float, B>;

  double take_step(ReadPixels x, const Target& target) {
    const Segment<float, B> drawing{.noise = {trainer_.noise()}};
    return trainer_.step(here(x), target, extra_of<typename Trained::Extra>(drawing));
  }
  /// Copies the pixels x to the backend. The returned view is valid until the next call.
  View<const float, 2, B> here(ReadPixels x) {
    return training::from_host(ctx_, x.data(), pixels_, std::ssize(x) / kPixels, kPixels);
  }
  View<const Index, 1, B> here(Labels labels) {
    return training::from_host(ctx_, labels.data(), labels_, std::ssize(labels));
  }
  /// Prepares a forward pass of the evaluation model.
  void begin(View<const float, 2, B> pixels) {
    y_.resize(pixels.extent(0), evaluated_.out_dim());
    evaluated_.begin(ctx_, trainer_.params, pixels.extent(0), carry_);
  }

  typename B::Context ctx_;
  Trained trainer_;
  Evaluated evaluated_;
  InputGradient<float, typename B::Context, ModelT, CrossEntropy> gradient_;
  Index k_;
  Carry<Evaluated, float, B> carry_;
  Tensor<float, 2, B> pixels_, attacked_, y_, probabilities_;  // pixels_, attacked_ [N, 784]; the others [N, 10]
  Tensor<Index, 1, B> labels_;
};

/// Makes a classifier.
/// @param make  make(training) returns the layers: for training if `training` is true, otherwise for evaluation
template <class B, class F>
std::unique_ptr<Model> network(const Options& o, const F& make) {
  return std::make_unique<Network<B, decltype(make(true))>>(o, make(true), make(false));
}

}  // namespace images
