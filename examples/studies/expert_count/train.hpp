#pragma once

#include <algorithm>
#include <gatefold/gatefold.hpp>
#include <gatefold/papers/routed_trainer.hpp>
#include <gatefold/papers/signal_mixture.hpp>
#include <gatefold/papers/specialisation.hpp>
#include <type_traits>
#include <utility>

#include "../support/routing_measures.hpp"
#include "measure.hpp"
#include "setting.hpp"
#include "streamed.hpp"
#include "uniform_top_k.hpp"

namespace studies::expert_count {

/// Trains a layer by algorithm 1 of paper 003. Experts use normalised gradients, the router uses plain gradients. Both
/// gradients are of the same loss at the same parameters, with new noise in each iteration. Returns the measurements
/// during and after training.
template <class GateT, class ExpertT>
Json train_layer(const Setting& s, const GateT& gate, const ExpertT& expert, const Report& report) {
  Cpu::Context ctx(1);
  const Seed seed{s.seed};
  SignalMixture law = SignalMixture::expert_count(s.patches);
  law.scale = s.scale;
  law.decay = s.decay;
  const Signals signals = law.signals<float, Cpu>(ctx, seed.fork(0));
  const Sample training = law.draw<float, Cpu>(ctx, signals, seed.fork(1), s.train);
  const Sample test = law.draw<float, Cpu>(ctx, signals, seed.fork(2), s.test);

  RoutedTrainer trainer{ctx, Mixture{gate, expert}, Logistic{}, seed.fork(3), true};
  const optim::NormalizedGd of_experts{.lr = s.eta};
  const optim::Sgd of_router{.lr = s.eta_router};
  auto expert_state = of_experts.begin(ctx, trainer.params.expert);
  auto router_state = of_router.begin(ctx, trainer.params.gate);
  using Extra = typename decltype(trainer)::Extra;
  const auto noise = [&](std::uint64_t stream, Index t) {
    Extra extra;
    extra.selection.random = Random{seed.fork(stream), static_cast<std::uint64_t>(t)};
    return extra;
  };

  const auto specialised = [&] {
    auto& weight = trainer.params.expert.weight;
    return strongest(
        ctx,
        std::as_const(weight).view().as(s.experts, weight.size() / (s.experts * kDim * s.filters), kDim, s.filters),
        signals);
  };
  const auto experts = [&](Index t) {
    return Json{{"iteration", t},
                {"errors", cluster_errors(ctx, trainer.mixture, trainer.params, test)},
                {"specialised", specialised()}};
  };
  Json result, curve{{"iteration", Json::array()},
                     {"loss", Json::array()},
                     {"accuracy", Json::array()},
                     {"entropy", Json::array()}};
  const auto evaluate = [&](Index t) {
    const double loss = trainer.evaluate(test.x, test.target, s.test_noise ? noise(5, t) : Extra{}).router;
    const Accuracy hits = accuracy(right(trainer.output(), test.target), test.cluster);
    const auto table = metric::routing_table<float, Cpu>(ctx, trainer.saved.plan, test.cluster, kClusters);
    const double entropy = metric::dispatch_entropy(table);
    RoutingMeasures measures;
    measures.add(ctx, trainer.saved, trainer.output());
    measures.append(result["log"]);
    curve["iteration"].push_back(t);
    curve["loss"].push_back(loss);
    curve["accuracy"].push_back(hits.all);
    curve["entropy"].push_back(entropy);
    result["accuracy"] = hits.all;
    result["entropy"] = entropy;
    result["loss"] = loss;
    result["cluster_accuracy"] = hits.cluster;
    result["routing"] = shares(table);
  };

  Json at{{"start", {{"specialised", specialised()}}}};
  const Index every = std::max<Index>(1, s.iterations / 20);
  for (Index t = 0; t < s.iterations; ++t) {
    if (t == s.t1()) at["t1"] = experts(t);
    if (t % every == 0) {
      evaluate(t);
      report(static_cast<double>(t) / static_cast<double>(s.iterations));
    }
    trainer.gradients(training.x, training.target, noise(4, t));
    if (t + 1 == s.iterations) {  // like Chen et al., measures the entropy of the last routing with noise
      result["train_accuracy"] = accuracy(right(trainer.output(), training.target), training.cluster).all;
      result["train_entropy"] =
          metric::dispatch_entropy<float, Cpu>(ctx, trainer.saved.plan, training.cluster, kClusters);
    }
    of_experts.step(ctx, trainer.params.expert, trainer.grads.expert, expert_state);
    of_router.step(ctx, trainer.params.gate, trainer.grads.gate, router_state);
  }
  evaluate(s.iterations);
  at["end"] = experts(s.iterations);
  result["curve"] = std::move(curve);
  result["experts"] = std::move(at);
  return result;
}

template <class ActT>
PatchMlp<ActT> mlp(const Setting& s) {
  return {.model_dim = kDim,
          .patches = s.patches,
          .filters = s.filters,
          .equal_patches = s.equal_patches,
          .initial = Initial::normal(s.sigma0)};
}
inline PatchScores scores_of_patches(const Setting& s) {
  return {.model_dim = kDim, .experts = s.experts, .length = s.patches};
}
template <class ActT>
PatchCnn<ActT> cnn(const Setting& s) {
  return {.model_dim = kDim, .patches = s.patches, .filters = s.filters, .initial = Initial::normal(s.sigma0)};
}
inline LinearScores shared_scores(const Setting& s) {
  return {.model_dim = kDim, .experts = s.experts, .length = s.patches, .bias = false, .initial = Initial::zero()};
}

/// Trains a layer whose gate has the given scores. The selection is top-1 with noise as in the paper, or UniformTopK
/// for more picks.
template <class ScoresT, class ExpertT>
Json train_gated(const Setting& s, const ScoresT& scores, const ExpertT& expert, const Report& report) {
  PatchSums<float> sums;
  const StreamedScores<ScoresT> streamed{scores, std::is_same_v<ScoresT, LinearScores> ? &sums : nullptr};
  if (s.k > 1) {
    using Gate = ComposedGate<StreamedScores<ScoresT>, Independent, UniformTopK>;
    return train_layer(s, Gate{.scores = streamed, .mixing = {}, .selection = {.k = s.k}}, Streamed{expert}, report);
  }
  using Gate = ComposedGate<StreamedScores<ScoresT>, Independent, FewDraws>;
  return train_layer(s, Gate{.scores = streamed}, Streamed{expert}, report);
}

}  // namespace studies::expert_count
