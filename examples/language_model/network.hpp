#pragma once

#include <gatefold/gatefold.hpp>
#include <gatefold/io.hpp>
#include <tuple>

#include "model.hpp"

namespace language {

using namespace gatefold;

/// Tokens → rows → attention and a mixture of experts, several times → rows, whose products with those of the output
/// layer are logits.
template <class RuleT>
auto network(const Options& o, Index vocabulary, const RuleT& rule) {
  const WithAuxiliary<SoftmaxTopK, Balance> gate{
      .scores = {.experts = o.experts}, .selection = {.k = o.k}, .auxiliary = {Balance{.weight = o.balance}}};
  return Chain{
      Embedding{.vocabulary = vocabulary, .model_dim = o.dim, .places = o.length, .initial = Initial::normal(0.1)},
      Stack{Block{Residual{update::Plain{}, PreNorm{LayerNorm{}, Attention{.model_dim = o.dim, .heads = o.heads}}},
                  Residual{rule, PreNorm{LayerNorm{}, Mixture{gate, Mlp<Gelu>{o.dim, o.hidden}}}}},
            o.blocks},
      LayerNorm{o.dim}};
}

template <class RuleT>
auto trainer(Cpu::Context& ctx, const Options& o, Index vocabulary, const RuleT& rule) {
  return Trainer{ctx, network(o, vocabulary, rule), StreamedCrossEntropy{.vocabulary = vocabulary, .model_dim = o.dim},
                 optim::Scheduled{optim::Clipped{optim::AdamW{.lr = o.lr, .beta2 = 0.99, .decay = o.decay}, o.clip},
                                  optim::WarmupCosine{.warmup = o.warmup, .total = o.steps, .floor = 0.02}},
                 Seed{o.seed}};
}

template <class RuleT>
class Network final : public Model {
 public:
  Network(const Options& o, Index vocabulary, const RuleT& rule)
      : ctx_(o.threads), trainer_(trainer(ctx_, o, vocabulary, rule)), vocabulary_(vocabulary), dim_(o.dim) {
    std::get<1>(extra_.layers).attention.length = o.length;
  }

  double step(const Ids& x, const Ids& next) override { return trainer_.step(x, next, extra_); }
  Index steps() const override { return trainer_.state.step; }
  Index parameters() const override { return count_values(trainer_.params); }

  void read(const Ids& x) override {
    y_.resize(static_cast<Index>(x.size()), dim_);
    trainer_.infer(x, y_, extra_);
  }
  std::span<const float> logits(Index first, Index count) override {
    const auto& output = trainer_.params.loss;
    z_.resize(count, vocabulary_);
    Cpu::gemm<float>(ctx_, y_.view().rows(first, count), false, output.weight.view(), true, false, z_.view(),
                     fn::Store{});
    for (Index n = 0; n < count; ++n)
      for (Index v = 0; v < vocabulary_; ++v) z_(n, v) += output.bias(v);
    return {z_.data(), static_cast<std::size_t>(z_.size())};
  }

  void save(const std::filesystem::path& path, const io::Metadata& metadata) const override {
    save_checkpoint(path, trainer_, metadata);
  }
  void load(const std::filesystem::path& path) override { load_checkpoint(path, trainer_); }

 private:
  using Trained = decltype(trainer(std::declval<Cpu::Context&>(), std::declval<const Options&>(), Index(),
                                   std::declval<const RuleT&>()));

  Cpu::Context ctx_;
  Trained trainer_;
  typename Trained::Extra extra_{};
  Index vocabulary_, dim_;
  Tensor<float, 2, Cpu> y_, z_;  // [N, D], [count, V]
};

}  // namespace language
