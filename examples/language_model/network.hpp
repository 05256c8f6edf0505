#pragma once

#include <gatefold/gatefold.hpp>
#include <gatefold/io.hpp>
#include <type_traits>
#include <utility>
#include <vector>

#include "model.hpp"

namespace language {

using namespace gatefold;

inline LanguageSizes sizes(const Options& o, Index vocabulary) {
  return {.vocabulary = vocabulary,
          .model_dim = o.dim,
          .heads = o.heads,
          .window = o.length,
          .depth = o.blocks,
          .dropout = o.dropout,
          .embedding = Initial::normal(0.1)};
}

/// switch_model, whose blocks run again in backward where this is asked for.
template <class RuleT>
auto network(const Options& o, const LanguageSizes& s, const RuleT& rule) {
  const WithAuxiliary<SoftmaxTopK, Balance> gate{
      .scores = {.experts = o.experts}, .selection = {.k = o.k}, .auxiliary = {Balance{.weight = o.balance}}};
  const HiddenDropout expert{o.expert_dropout, Mlp<Gelu>{o.dim, o.hidden}};
  const auto block = gatefold::language::PreNormed::layer(s, rule, Dropout{s.dropout, Mixture{gate, expert}});
  return gatefold::language::model_of<gatefold::language::PreNormed>(s, Recompute{block, o.recompute});
}

/// Whether weight decay moves the tensor of this name.
inline auto decays(const Options& o) -> bool (*)(const Name&) {
  if (o.decayed == "all") return [](const Name&) { return true; };
  if (o.decayed == "weights") return is_weight;
  return [](const Name& name) { return is_weight(name) && name.str() != "model.layers.0.weight"; };
}

template <class RuleT>
auto trainer(Cpu::Context& ctx, const Options& o, Index vocabulary, const RuleT& rule) {
  const LanguageSizes s = sizes(o, vocabulary);
  const optim::AdamW adam{.lr = o.lr, .beta2 = 0.99}, decaying{.lr = o.lr, .beta2 = 0.99, .decay = o.decay};
  return Trainer{ctx, network(o, s, rule), s.loss(),
                 optim::Scheduled{optim::Clipped{InGroups{decays(o), decaying, adam}, o.clip},
                                  optim::WarmupCosine{.warmup = o.warmup, .total = o.steps, .floor = 0.02}},
                 Seed{o.seed}};
}

template <class RuleT>
class Network final : public Model {
 public:
  Network(const Options& o, Index vocabulary, const RuleT& rule)
      : o_(o),
        ctx_(o.threads),
        trainer_(trainer(ctx_, o, vocabulary, rule)),
        // Keys and values, of as many items as attention reaches back to.
        memory_(ctx_, {.layers = o.blocks,
                       .width = 2 * o.dim,
                       .most = gatefold::language::PreNormed::attention(sizes(o, vocabulary)).remembers()}),
        vocabulary_(vocabulary) {}

  double step(const Ids& x, const Ids& next) override {
    const Index count = static_cast<Index>(x.size()) / o_.accumulate;
    const View<const Index, 1, Cpu> ids(x), labels(next);
    const auto part = [&](Index i, auto&& run) {
      const auto draw = static_cast<std::uint64_t>(steps() * o_.accumulate + i);
      return run(ids.rows(i * count, count), labels.rows(i * count, count),
                 extra({.length = o_.length, .noise = {Random{trainer_.seed.fork(2), draw}}}));
    };
    for (Index i = 0; i + 1 < o_.accumulate; ++i)
      part(i, [&](const auto&... arguments) { return trainer_.accumulate(arguments...); });
    return part(o_.accumulate - 1, [&](const auto&... arguments) { return trainer_.step(arguments...); });
  }
  Index steps() const override { return trainer_.state.step; }
  Index parameters() const override { return count_values(trainer_.params); }

  void read(const Ids& x) override { infer(x, {.length = o_.length}); }
  std::vector<training::Routing> routing(const Ids& x) override {
    const Index count = static_cast<Index>(x.size());
    y_.resize(count, o_.dim);
    gatefold::Carry<Layer, float, Cpu> carry;
    gatefold::Saved<Layer, float, Cpu> saved;  // as large as training's: it goes
    trainer_.layer().begin(ctx_, trainer_.model(), count, carry);
    trainer_.layer().forward(ctx_, trainer_.model(), x, carry, y_, saved, extra({.length = o_.length}));
    return training::routing(ctx_, saved, o_.k);
  }
  void begin() override { memory_.begin(ctx_); }
  std::span<const float> read_on(const Ids& x) override {
    const Index count = static_cast<Index>(x.size());
    infer(x, {.length = count, .memory = memory_.of(count)});
    memory_.advance();
    return logits(count - 1, 1);
  }
  std::span<const float> logits(Index first, Index count) override {
    z_.resize(count, vocabulary_);
    trainer_.loss.logits(ctx_, trainer_.params.loss, trainer_.model(), std::as_const(y_).view().rows(first, count),
                         z_.view());
    return {z_.data(), static_cast<std::size_t>(z_.size())};
  }

  void save(const std::filesystem::path& path, const io::Metadata& metadata) const override {
    save_checkpoint(path, trainer_, metadata);
  }
  void load(const std::filesystem::path& path) override { load_checkpoint(path, trainer_); }

 private:
  using Trained = decltype(trainer(std::declval<Cpu::Context&>(), std::declval<const Options&>(), Index(),
                                   std::declval<const RuleT&>()));
  using Layer = std::remove_cvref_t<decltype(std::declval<Trained&>().layer())>;

  static auto extra(const Segment<float, Cpu>& segment) { return extra_of<typename Trained::Extra>(segment); }
  void infer(const Ids& x, const Segment<float, Cpu>& segment) {
    y_.resize(static_cast<Index>(x.size()), o_.dim);
    trainer_.infer(x, y_, extra(segment));
  }

  Options o_;
  Cpu::Context ctx_;
  Trained trainer_;
  SegmentMemory<float, Cpu> memory_;
  Index vocabulary_;
  Tensor<float, 2, Cpu> y_{}, z_{};  // [N, D] what was read gives; [count, V]
};

}  // namespace language
