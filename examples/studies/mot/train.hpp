#pragma once

#include <cmath>
#include <cstdint>
#include <gatefold/gatefold.hpp>
#include <gatefold/papers/merged_transformer.hpp>
#include <gatefold/papers/specialisation.hpp>
#include <gatefold/papers/three_stage.hpp>
#include <string>
#include <utility>

#include "../support/runs.hpp"
#include "data.hpp"
#include "measure.hpp"
#include "options.hpp"

namespace studies::mot {

enum class Model { mot, attention_absent, ffn_level, multi_head };

inline const char* name(Model model) {
  switch (model) {
    case Model::mot:
      return "mot";
    case Model::attention_absent:
      return "attention_absent";
    case Model::ffn_level:
      return "ffn_level";
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

/// Trains one of the three models with a router.
template <class ExpertT>
Json train_routed(const Setting& s, const ExpertT& expert, bool shared_attention, Seed seed, const Report& report) {
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
  const Stages stages{s.t1,
                      attends ? s.t2 : s.t1,
                      optim::NormalizedGd{.lr = s.eta},
                      optim::Sgd{.lr = s.eta_attention},
                      optim::Sgd{.lr = s.eta},
                      optim::Sgd{.lr = s.eta_router},
                      shared_attention};
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
      Json& now = curves[stage + how] = specialists(ctx, data, neurons(trainer.params.expert), trainer.saved.plan);
      now["score"] = largest_score(data.test.x, std::as_const(trainer.params.gate.scores.weight).view());
    }
  };
  const auto measure = [&](Index t, Json& curves) {
    test(curves, "test", Noisy{});
    if constexpr (attends) {
      const auto of = metric::specialisation(ctx, neurons(trainer.params.expert), data.signals.feature);
      const auto maps =
          attention(ctx, data, std::as_const(trainer.params.expert.key_query).view(), of, trainer.saved.plan.expert);
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
                          false, seed, report);
    case Model::multi_head:
      return train_multi_head(s, seed, report);
    default:
      return train_routed(s, AttentionExpert{.model_dim = s.dim, .length = s.length, .initial = initial},
                          model == Model::ffn_level, seed, report);
  }
}

}  // namespace studies::mot
