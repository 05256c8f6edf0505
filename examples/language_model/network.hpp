#pragma once

#include <algorithm>
#include <gatefold/io.hpp>
#include <gatefold/policies.hpp>
#include <iterator>
#include <type_traits>
#include <utility>
#include <vector>

#include "../training/host.hpp"
#include "../training/place.hpp"
#include "model.hpp"

namespace language {

using namespace gatefold;
using training::OneProcess;

/// Returns true if the initial weights are those of the code of paper 001.
inline bool has_reference_initial(const Options& o) { return o.initial == "reference"; }

inline LanguageSizes sizes(const Options& o, Index vocabulary) {
  return {.vocabulary = vocabulary,
          .model_dim = o.dim,
          .heads = o.heads,
          .window = o.length,
          .depth = o.blocks,
          .dropout = o.dropout,
          .embedding = Initial::normal(has_reference_initial(o) ? 1 : 0.1)};
}

/// Returns the layers of the language model, with the sizes of the options. If `recompute` is true, forward does not
/// save the state inside a block, and backward computes it again.
/// @tparam glam  true: a dense block, without a mixture, follows each block, as in glam_model
template <bool glam, class RuleT, class PlaceT>
auto network(const Options& o, const LanguageSizes& s, const RuleT& rule, const PlaceT& place, bool recompute) {
  const WithAuxiliary<SoftmaxTopK, Balance> gate{
      .scores = {.experts = o.experts}, .selection = {.k = o.k}, .auxiliary = {Balance{.weight = o.balance}}};
  const auto expert = [&](const Initial& initial) {
    return HiddenDropout{o.expert_dropout, Mlp<Gelu>{.model_dim = o.dim, .hidden_dim = o.hidden, .initial = initial}};
  };
  const Mixture mixture{gate, expert(has_reference_initial(o) ? Initial::reference() : Initial{})};
  using Form = gatefold::language::PreNormed;
  const auto block = Form::layer(s, rule, Dropout{s.dropout, place.branch(mixture)});
  if constexpr (glam) {
    const Chain blocks{block, Form::dense_layer(s, OneExpert{expert(Initial{})})};
    return gatefold::language::model_of<Form>(s, Recompute{blocks, recompute});
  } else {
    return gatefold::language::model_of<Form>(s, Recompute{block, recompute});
  }
}

/// Returns a function that is true for the names of tensors in the first group of the optimizer, which has weight
/// decay. If the option `decayed` is "all", the second group has the same decay.
inline auto decays(const Options& o) -> bool (*)(const Name&) {
  if (o.decayed != "no-embedding") return is_weight;
  return [](const Name& name) { return is_weight(name) && name.str() != "model.layers.0.weight"; };
}

template <bool glam, class ContextT, class RuleT, class PlaceT>
auto trainer(ContextT& ctx, const Options& o, Index vocabulary, const RuleT& rule, const PlaceT& place) {
  const LanguageSizes s = sizes(o, vocabulary);
  const optim::AdamW decaying{.lr = o.lr, .beta2 = 0.99, .decay = o.decay};
  const optim::AdamW others{.lr = o.lr, .beta2 = 0.99, .decay = o.decayed == "all" ? o.decay : 0};
  return Trainer{
      ctx, network<glam>(o, s, rule, place, o.recompute), place.loss(s.loss()),
      place.optimizer(optim::Scheduled{optim::Clipped{InGroups{decays(o), decaying, others}, o.clip},
                                       optim::WarmupCosine{.warmup = o.warmup, .total = o.steps, .floor = o.floor}}),
      Seed{o.seed}};
}

/// @tparam B     Cpu, CpuBf16, Cuda or CudaBf16
/// @tparam glam  whether the layout is that of GLaM: see network()
template <class B, class RuleT, class PlaceT, bool glam = false>
class Network final : public Model {
 public:
  Network(const Options& o, Index vocabulary, const RuleT& rule, const PlaceT& place)
      : o_(o),
        place_(place),
        ctx_(training::context<B>(o.threads)),
        trainer_(trainer<glam>(ctx_, o, vocabulary, rule, place)),
        shown_(as_layer<float, B>(network<glam>(o, sizes(o, vocabulary), rule, place, false))),
        // Memory with room for the keys and values of all earlier tokens that attention can read.
        memory_(ctx_, {.layers = (glam ? 2 : 1) * o.blocks,
                       .width = 2 * o.dim,
                       .most = gatefold::language::PreNormed::attention(sizes(o, vocabulary)).remembers()}),
        vocabulary_(vocabulary),
        checkpoint_(place.checkpoint()) {}

  double step(const Ids& x, const Ids& next) override {
    const Index count = static_cast<Index>(x.size()) / o_.accumulate;
    const auto ids = here(x, ids_), labels = here(next, labels_);
    const dist::Range mine = items_of(count);
    const auto part = [&](Index i, auto&& run) {
      const Index first = i * count + mine.first;
      return place_.part_of_step(trainer_, [&] {
        return run(ids.rows(first, mine.count), labels.rows(first, mine.count),
                   extra({.length = o_.length, .noise = {place_.noise(trainer_.noise())}}));
      });
    };
    for (Index i = 0; i + 1 < o_.accumulate; ++i)
      part(i, [&](const auto&... arguments) { return trainer_.accumulate(arguments...); });
    const double loss = part(o_.accumulate - 1, [&](const auto&... arguments) { return trainer_.step(arguments...); });
    if (o_.rebalance > 0 && steps() % o_.rebalance == 0) place_.rebalance(trainer_);
    return loss;
  }
  Index steps() const override { return trainer_.state.step; }
  std::vector<nlohmann::ordered_json> shards() const override { return place_.lines(); }
  Index parameters() const override { return place_.parameters(trainer_.params); }
  Summary summary() const override { return gatefold::summary(trainer_.layer()); }

  void read(const Ids& x) override {
    const Index count = static_cast<Index>(x.size());
    const dist::Range mine = items_of(count);
    infer(x, mine, {.length = o_.length});
    place_.gather(y_, count / o_.length, mine);
  }
  std::vector<training::Routing> routing(const Ids& x) override {
    // This pass saves the state of all blocks, even if training recomputes it. Each part of the batch is therefore so
    // small that all blocks together save about as much as one block does in a training step.
    const Index part = std::max<Index>(1, o_.batch / o_.accumulate / o_.blocks) * o_.length;
    gatefold::Carry<Layer, float, B> carry;
    gatefold::Saved<Layer, float, B> saved;
    std::vector<training::Routing> all;
    for (auto first = x.begin(); first != x.end();) {
      const Ids some(first, first + std::min<Index>(part, x.end() - first));
      first += std::ssize(some);
      const dist::Range mine = items_of(std::ssize(some));
      y_.resize(mine.count, o_.dim);
      shown_.begin(ctx_, trainer_.model(), mine.count, carry);
      shown_.forward(ctx_, trainer_.model(), here(some, ids_).rows(mine.first, mine.count), carry, y_, saved,
                     extra({.length = o_.length}));
      training::join(all, training::routing(ctx_, saved, o_.k));
    }
    return all;
  }
  void freeze(Weights form) override {
    if constexpr (std::is_same_v<PlaceT, OneProcess>) {
      auto frozen = gatefold::freeze(ctx_, std::move(trainer_.params), {.weights = form});
      trainer_.params = {std::move(frozen.model.params), std::move(frozen.loss)};
      packed_ = std::move(frozen.model.packed);
    }
  }
  void begin() override { memory_.begin(ctx_); }
  std::span<const float> read_on(const Ids& x) override {
    const Index count = static_cast<Index>(x.size());
    infer(x, {0, count}, {.length = count, .memory = memory_.of(count)});
    memory_.advance();
    return logits(count - 1, 1);
  }
  std::span<const float> logits(Index first, Index count) override {
    z_.resize(count, vocabulary_);
    const auto scope = ctx_.use(packed_);
    PlaceT::inner(trainer_.loss)
        .logits(ctx_, trainer_.params.loss, trainer_.model(), std::as_const(y_).view().rows(first, count), z_.view());
    return logits_ = training::to_host(ctx_, z_);
  }

  void save(const std::filesystem::path& path, const io::Metadata& metadata) override {
    checkpoint_->save(path, trainer_, metadata);
  }
  void wait() override { checkpoint_->wait(); }
  void load(const std::filesystem::path& path) override { place_.load(path, trainer_); }

 private:
  using Trained = decltype(trainer<glam>(std::declval<typename B::Context&>(), std::declval<const Options&>(), Index(),
                                         std::declval<const RuleT&>(), std::declval<const PlaceT&>()));
  using Layer = std::remove_cvref_t<decltype(std::declval<Trained&>().layer())>;

  static auto extra(const Segment<float, B>& segment) { return extra_of<typename Trained::Extra>(segment); }
  /// Copies token ids to the backend. The returned view is valid until `to` is overwritten.
  View<const Index, 1, B> here(const Ids& from, Tensor<Index, 1, B>& to) {
    return training::from_host(ctx_, from.data(), to, std::ssize(from));
  }
  /// Returns the range of items that this shard computes, out of `count` items. It consists of whole sequences.
  dist::Range items_of(Index count) const {
    const dist::Range sequences = place_.part_of(count / o_.length);
    return {sequences.first * o_.length, sequences.count * o_.length};
  }
  /// Computes the rows `mine` of y_, the output of the layers.
  void infer(const Ids& x, const dist::Range& mine, const Segment<float, B>& segment) {
    y_.resize(static_cast<Index>(x.size()), o_.dim);
    const auto scope = ctx_.use(packed_);
    trainer_.infer(here(x, ids_).rows(mine.first, mine.count), y_.view().rows(mine.first, mine.count), extra(segment));
  }

  Options o_;
  PlaceT place_;
  typename B::Context ctx_;
  Trained trainer_;
  /// Like the trainer's layers, but forward always saves the state of mixtures, even if training recomputes blocks.
  Layer shown_;
  SegmentMemory<float, B> memory_;
  Index vocabulary_;
  typename B::PackedWeights packed_{};  // copies that inference reads; none before freeze()
  decltype(std::declval<const PlaceT&>().checkpoint()) checkpoint_;
  Tensor<float, 2, B> y_{}, z_{};  // y_ [N, D]: output of the layers for the last tokens; z_ [count, V]: logits
  std::vector<float> logits_{};    // z on the host
  Tensor<Index, 1, B> ids_{}, labels_{};
};

/// Makes a network with the layout of the options.
template <class B, class RuleT, class PlaceT>
std::unique_ptr<Model> make_with_layout(const Options& o, Index vocabulary, const RuleT& rule, const PlaceT& place) {
  if (o.layout == "glam") return std::make_unique<Network<B, RuleT, PlaceT, true>>(o, vocabulary, rule, place);
  return std::make_unique<Network<B, RuleT, PlaceT>>(o, vocabulary, rule, place);
}

}  // namespace language
