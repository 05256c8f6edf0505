#pragma once

#include <gatefold/policies.hpp>
#include <iterator>
#include <utility>
#include <vector>

#include "../../training/host.hpp"
#include "../../training/routing.hpp"
#include "model.hpp"

namespace studies::lm {

using namespace gatefold;

inline LanguageSizes sizes(const Setting& s, Index vocabulary) {
  return {.vocabulary = vocabulary,
          .model_dim = s.dim,
          .heads = s.heads,
          .window = s.length,
          .depth = s.depth,
          .dropout = s.dropout,
          .embedding = Initial::normal(0.1)};
}

/// Implements Model for any language model of the library. Uses one thread.
/// @tparam B  Cpu or Cuda
template <class B, class ModelT>
class Network : public Model {
 public:
  Network(const ModelT& model, const Setting& s, Index vocabulary, Seed seed)
      : setting(s),
        trainer{ctx, model, sizes(s, vocabulary).loss(),
                optim::Scheduled{optim::Clipped{optim::AdamW{.lr = s.lr, .decay = 0}, s.clip},
                                 optim::WarmupCosine{.warmup = s.warmup, .total = s.steps, .floor = s.floor}},
                seed},
        extra(extra_of<Extra>(Segment<float, B>{.length = s.length})) {
    trainer.not_finite = NotFinite::skips;
  }

  void step(const Ids& x, const Ids& next) override {
    const Segment<float, B> noisy{.length = setting.length, .noise = {trainer.noise()}};
    trainer.step(here(x, ids), here(next, labels), setting.dropout > 0 ? extra_of<Extra>(noisy) : extra);
  }
  std::vector<double> surprises(const Ids& x, const Ids& next) override {
    infer(x, extra);
    return surprises_after(y, next);
  }
  Index parameters() const override { return count_values(trainer.params); }
  Index skipped() const override { return trainer.skipped; }

  std::vector<Routing> routing(const Ids& x) override {
    forward(x);
    std::vector<Routing> all;
    for (training::Routing& one : training::routing(ctx, saved, setting.k))
      all.push_back({one.entropy, std::move(one.load), std::move(one.picks)});
    // If the update rule evaluates its branch twice, each mixture occurs twice in `all`.
    const std::size_t depth = static_cast<std::size_t>(setting.depth), calls = all.size() / depth;
    for (std::size_t l = 1; l < depth && calls > 1; ++l) all[l] = std::move(all[l * calls]);
    all.resize(depth);
    return all;
  }

 protected:
  using C = typename B::Context;
  using Trained = Trainer<float, C, ModelT, StreamedCrossEntropy,
                          optim::Scheduled<optim::Clipped<optim::AdamW>, optim::WarmupCosine>>;
  using Layer = AsLayer<ModelT, float, B>;
  using Extra = typename Trained::Extra;

  /// Copies word ids to the backend. The returned view is valid until `to` is overwritten.
  View<const Index, 1, B> here(const Ids& from, Tensor<Index, 1, B>& to) {
    return training::from_host(ctx, from.data(), to, std::ssize(from));
  }
  /// Computes y, the input of the output layer.
  void infer(const Ids& x, const Extra& of) {
    y.resize(std::ssize(x), setting.dim);
    trainer.infer(here(x, ids), y, of);
  }
  /// Returns −log p of each word in `next`, from the inputs `read` of the output layer.
  std::vector<double> surprises_after(View<const float, 2, B> read, const Ids& next) {
    each.resize(read.extent(0));
    trainer.loss.each(ctx, trainer.params.loss, trainer.model(), read, here(next, labels), each);
    const std::vector<float> values = training::to_host(ctx, each);
    return {values.begin(), values.end()};
  }
  /// Runs a forward pass and saves its state for the measurements.
  void forward(const Ids& x) {
    y.resize(std::ssize(x), setting.dim);
    trainer.layer().begin(ctx, trainer.model(), y.extent(0), carry);
    trainer.layer().forward(ctx, trainer.model(), here(x, ids), carry, y, saved, extra);
  }

  Setting setting;
  C ctx = training::context<B>(1);
  Trained trainer;
  Extra extra;
  gatefold::Saved<Layer, float, B> saved;
  gatefold::Carry<Layer, float, B> carry;
  Tensor<float, 2, B> y;  // [N, D]

 private:
  Tensor<float, 1, B> each;  // [N]
  Tensor<Index, 1, B> ids, labels;
};

}  // namespace studies::lm
