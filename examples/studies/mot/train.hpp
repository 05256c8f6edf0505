#pragma once

#include <cmath>
#include <cstdint>
#include <gatefold/gatefold.hpp>
#include <gatefold/papers/merged_transformer.hpp>
#include <gatefold/papers/specialisation.hpp>
#include <gatefold/papers/three_stage.hpp>
#include <string>
#include <utility>

#include "../support/routing_measures.hpp"
#include "../support/runs.hpp"
#include "data.hpp"
#include "embedded_gd.hpp"
#include "measure.hpp"
#include "options.hpp"

namespace studies::mot {

/// `unmerged` and `unmerged_fast` are MoT with separate matrices for keys, queries and values, eq. (3) of the paper.
/// `unmerged_fast` has larger learning rates in stages I and II. `embedded_router` is MoT with a router that reads the
/// tokens E X_l instead of X_l. E is random and fixed.
enum class Model { mot, attention_absent, ffn_level, multi_head, unmerged, unmerged_fast, embedded_router };

inline const char* name(Model model) {
  switch (model) {
    case Model::mot:
      return "mot";
    case Model::attention_absent:
      return "attention_absent";
    case Model::ffn_level:
      return "ffn_level";
    case Model::unmerged:
      return "unmerged";
    case Model::unmerged_fast:
      return "unmerged_fast";
    case Model::embedded_router:
      return "embedded_router";
    default:
      return "multi_head";
  }
}

inline bool measured(const Setting& s, Index t) { return t % s.every == 0 || t == s.t1 || t == s.t2 || t == s.epochs; }

/// Trains a model in the stages of algorithm 1 and takes measurements.
///
/// @param step      runs one epoch and returns the loss before it
/// @param loss_now  returns the training loss without training
/// @param measure   measure(epoch, report) adds the numbers of an epoch to the curves
template <class Step, class LossNow, class Measure>
Json follow(const Setting& s, const Report& report, const Step& step, const LossNow& loss_now, const Measure& measure) {
  Json curves = Json::object();
  for (Index t = 0; t <= s.epochs; ++t) {
    const bool now = measured(s, t);
    if (now) {
      curves["epoch"].push_back(t);
      measure(t, curves);
    }
    const double loss = t < s.epochs ? step(t) : loss_now();
    if (now) curves["train_loss"].push_back(loss);
    report(static_cast<double>(t + 1) / static_cast<double>(s.epochs + 1));
  }
  return curves;
}

/// Options of a model with a router that are neither in its setting nor in its expert.
struct Variant {
  bool shared_attention = false;
  double first = 1, second = 1;  // factors of the learning rates in stages I and II
  bool embedded = false;         // if true, the router reads E X_l
};

/// Trains one of the models with a router.
template <class ExpertT>
Json train_routed(const Setting& s, const ExpertT& expert, const Variant& variant, Seed seed, const Report& report) {
  using namespace gatefold;
  Cpu::Context ctx(1);
  const Data data(ctx, s, seed);
  const Mixture mixture{SoftmaxNoisyTop1{.scores = {.model_dim = s.dim,
                                                    .experts = s.experts,
                                                    .length = s.length,
                                                    .bias = false,
                                                    .initial = Initial::zero()}},
                        expert};
  constexpr bool attends = requires(gatefold::Params<ExpertT, float, Cpu> p) { p.key_query; };
  Tensor<float, 2, Cpu> square;
  if (variant.embedded) square = square_of_embedding(ctx, seed.fork(6), s.dim);
  const Stages stages{s.t1,
                      attends ? s.t2 : s.t1,
                      optim::NormalizedGd{.lr = variant.first * s.eta},
                      optim::Sgd{.lr = variant.second * s.eta_attention},
                      optim::Sgd{.lr = s.eta},
                      EmbeddedGd{{.lr = s.eta_router}, square.view()},
                      variant.shared_attention};
  ThreeStage model{ctx, mixture, Logistic{}, stages, seed.fork(3)};
  using Noisy = typename decltype(model)::Extra;
  auto& trainer = model.trainer;
  const auto noise = [&](std::uint64_t stream, Index t) {
    Noisy extra;
    extra.selection.random = Random{seed.fork(stream), static_cast<std::uint64_t>(t)};
    return extra;
  };
  const auto test = [&](Json& curves, const std::string& how, const auto& extra) {
    curves[how + "_loss"].push_back(trainer.evaluate(data.test.x, data.test.target, extra).experts);
    curves[how + "_accuracy"].push_back(accuracy(trainer.expert_output(), data.test.target));
  };
  // At the start, after stages I and II, and at the end, adds measurements of the routing in the last test.
  const auto snapshots = [&](Index t, Json& curves, const std::string& how) {
    for (const auto& [epoch, stage] : {std::pair{Index(0), "start"}, {s.t1, "t1"}, {s.t2, "t2"}, {s.epochs, "end"}}) {
      if (t != epoch) continue;
      Json& now = curves[stage + how] =
          specialists(ctx, data, neurons(merged(ctx, trainer.params.expert)), trainer.saved.plan);
      now["score"] = largest_score(data.test.x, std::as_const(trainer.params.gate.scores.weight).view());
    }
  };
  const auto measure = [&](Index t, Json& curves) {
    test(curves, "test", Noisy{});
    RoutingMeasures now;
    now.add(ctx, trainer.saved, trainer.expert_output());
    now.append(curves["log"]);
    if constexpr (attends) {
      const auto& experts = merged(ctx, trainer.params.expert);
      const auto of = metric::specialisation(ctx, neurons(experts), data.signals.feature);
      const auto maps = attention(ctx, data, experts.key_query.view(), of, trainer.saved.plan.expert);
      curves["attention"].push_back(maps.first);
      curves["attention_routed"].push_back(maps.second);
    }
    snapshots(t, curves, "");
    test(curves, "noisy", noise(5, t));
    snapshots(t, curves, "_noisy");
  };
  const auto step = [&](Index t) {
    model.begin_epoch();
    return model.step(data.train.x, data.train.target, noise(4, t)).experts;
  };
  return follow(
      s, report, step, [&] { return trainer.evaluate(data.train.x, data.train.target, noise(4, s.epochs)).experts; },
      measure);
}

/// Trains the transformer without a router. Its M heads and 2M neurons have as many parameters as M experts and their
/// router.
inline Json train_multi_head(const Setting& s, Seed seed, const Report& report) {
  using namespace gatefold;
  Cpu::Context ctx(1);
  const Data data(ctx, s, seed);
  const double heads = static_cast<double>(s.experts),
               eta = s.eta_multi_head > 0 ? s.eta_multi_head : s.eta / (heads * std::sqrt(heads));
  const MergedTransformer<> expert{.model_dim = s.dim,
                                   .length = s.length,
                                   .heads = s.experts,
                                   .filters = 2 * s.experts,
                                   .initial = {Initial::Law::normal_fan_in, s.start}};
  const InStages<> stages{
      .first = s.t1, .second = s.t2, .ffn = {.lr = eta}, .attention = {.lr = s.eta_attention}, .fine = {.lr = eta}};
  Trainer trainer{ctx, NoResidual{OneExpert{expert}}, Logistic{}, stages, seed.fork(3)};
  const auto measure = [&](Index, Json& curves) {
    curves["test_loss"].push_back(trainer.evaluate(data.test.x, data.test.target));
    curves["test_accuracy"].push_back(accuracy(trainer.output(), data.test.target));
  };
  const auto step = [&](Index) {
    ++trainer.state.epoch;
    return trainer.step(data.train.x, data.train.target);
  };
  return follow(
      s, report, step, [&] { return trainer.evaluate(data.train.x, data.train.target); }, measure);
}

inline Json train(const Setting& s, Model model, Seed seed, const Report& report) {
  using namespace gatefold;
  const Initial initial{Initial::Law::normal_fan_in, s.start};
  switch (model) {
    case Model::attention_absent:
      return train_routed(s,
                          PatchCnn<Identity>{.model_dim = s.dim, .patches = s.length, .filters = 1, .initial = initial},
                          {}, seed, report);
    case Model::multi_head:
      return train_multi_head(s, seed, report);
    case Model::unmerged:
    case Model::unmerged_fast: {
      // The elements of a factor are drawn from N(0, σ₀/d). So the elements of a product of two factors have the
      // variance σ₀²/d, as in merged matrices. At the start, a step of both factors moves their product by √(2σ₀) η in
      // stage I, and by 2σ₀ η_a times the gradient of the product in stage II.
      const AttentionExpert expert{.model_dim = s.dim,
                                   .length = s.length,
                                   .key_dim = s.dim,
                                   .initial = {Initial::Law::normal_fan_in, std::sqrt(s.start)}};
      Variant variant;
      if (model == Model::unmerged_fast) variant = {.first = 1 / std::sqrt(2 * s.start), .second = 1 / (2 * s.start)};
      return train_routed(s, expert, variant, seed, report);
    }
    default:
      return train_routed(s, AttentionExpert{.model_dim = s.dim, .length = s.length, .initial = initial},
                          {.shared_attention = model == Model::ffn_level, .embedded = model == Model::embedded_router},
                          seed, report);
  }
}

}  // namespace studies::mot
