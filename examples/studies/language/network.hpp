#pragma once

#include <gatefold/gatefold.hpp>
#include <gatefold/model/segment.hpp>
#include <utility>
#include <vector>

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
          .embedding = Initial::normal(0.1)};
}

/// Any language model of the library, with one thread.
template <class ModelT>
class Network : public Model {
 public:
  Network(const ModelT& model, const Setting& s, Index vocabulary, Seed seed)
      : setting(s),
        trainer{ctx, model, sizes(s, vocabulary).loss(),
                optim::Scheduled{optim::Clipped{optim::AdamW{.lr = s.lr, .decay = 0}, s.clip},
                                 optim::WarmupCosine{.warmup = s.warmup, .total = s.steps, .floor = 0.1}},
                seed},
        extra(extra_of<Extra>(Segment<float, Cpu>{.length = s.length})) {
    trainer.not_finite = NotFinite::skips;
  }

  void step(const Ids& x, const Ids& next) override { trainer.step(x, next, extra); }
  std::vector<double> surprises(const Ids& x, const Ids& next) override {
    y.resize(static_cast<Index>(x.size()), setting.dim);
    trainer.infer(x, y, extra);
    return surprises_after(y, next);
  }
  Index parameters() const override { return count_values(trainer.params); }
  Index skipped() const override { return trainer.skipped; }

  std::vector<Routing> routing(const Ids& x) override {
    forward(x);
    std::vector<Routing> all;
    for (training::Routing& one : training::routing(ctx, saved, setting.k))
      all.push_back({one.entropy, std::move(one.load), std::move(one.picks)});
    // A rule that evaluates twice shows each of its mixtures twice.
    const std::size_t depth = static_cast<std::size_t>(setting.depth), each = all.size() / depth;
    for (std::size_t l = 1; l < depth && each > 1; ++l) all[l] = std::move(all[l * each]);
    all.resize(depth);
    return all;
  }

 protected:
  using C = Cpu::Context;
  using Trained = Trainer<float, C, ModelT, StreamedCrossEntropy,
                          optim::Scheduled<optim::Clipped<optim::AdamW>, optim::WarmupCosine>>;
  using Layer = AsLayer<ModelT, float, Cpu>;
  using Extra = typename Trained::Extra;

  /// −log p of each word, from what the output layer reads.
  std::vector<double> surprises_after(View<const float, 2, Cpu> read, const Ids& next) {
    Tensor<float, 1, Cpu> each(read.extent(0));
    trainer.loss.each(ctx, trainer.params.loss, trainer.model(), read, next, each);
    return {each.data(), each.data() + each.size()};
  }
  /// A pass over sequences that keeps what there is to see.
  void forward(const Ids& x) {
    y.resize(static_cast<Index>(x.size()), setting.dim);
    trainer.layer().begin(ctx, trainer.model(), y.extent(0), carry);
    trainer.layer().forward(ctx, trainer.model(), x, carry, y, saved, extra);
  }

  Setting setting;
  C ctx{1};
  Trained trainer;
  Extra extra;
  gatefold::Saved<Layer, float, Cpu> saved;
  gatefold::Carry<Layer, float, Cpu> carry;
  Tensor<float, 2, Cpu> y;  // [N, D]
};

}  // namespace studies::lm
