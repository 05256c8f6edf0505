#pragma once

#include <CLI/App.hpp>
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <gatefold/gatefold.hpp>
#include <gatefold/papers/specialisation.hpp>
#include <gatefold/papers/three_stage.hpp>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "support/routing_measures.hpp"
#include "support/shuffle.hpp"
#include "support/study.hpp"
#include "whole_transformer.hpp"

/// Trains mixtures whose experts are whole transformers, and their baselines, for mot_vision and mot_text.
namespace studies {

/// Items with their classes and, for regression, the values to predict.
struct Items {
  Tensor<float, 2, Cpu> x;      // [N, L · token_dim]
  Tensor<Index, 1, Cpu> label;  // [N] classes; rows of the routing tables
  Tensor<float, 2, Cpu> value;  // [N, 1]; empty for classification
  std::function<void(Cpu::Context&, Tensor<float, 2, Cpu>&, Random)> augment{};  // changes x of a batch, if not empty

  Index size() const { return x.extent(0); }
};

/// The task to predict the class of an item.
struct Classify {
  using Loss = CrossEntropy;
  static View<const Index, 1, Cpu> target(const Items& items, Index first, Index count) {
    return items.label.view().rows(first, count);
  }
  static double score(Cpu::Context& ctx, View<const float, 2, Cpu> y, View<const Index, 1, Cpu> target) {
    return metric::accuracy(ctx, y, target);
  }
  static double finish(double mean) { return mean; }
};
/// The task to predict a number. Its score is the root mean squared error.
struct Regress {
  using Loss = MeanSquaredError;
  static View<const float, 2, Cpu> target(const Items& items, Index first, Index count) {
    return items.value.view().rows(first, count);
  }
  static double score(Cpu::Context&, View<const float, 2, Cpu> y, View<const float, 2, Cpu> target) {
    double squares = 0;
    for (Index n = 0; n < y.extent(0); ++n) squares += std::pow(double(y(n, 0)) - double(target(n, 0)), 2);
    return squares / static_cast<double>(y.extent(0));
  }
  static double finish(double mean) { return std::sqrt(mean); }
};

/// The kinds of models that are compared. In a mixture, every item goes through only one transformer, for any number of
/// experts.
struct Model {
  /// - mot: the paper's mixture of whole transformers, in three stages.
  /// - mot_per_patch: mot with separate router weights for each position.
  /// - ffn_moe: mot with one attention for all experts.
  /// - attention_absent: mot with an attention that adds nothing.
  /// - multi_head: one transformer without a gate; all parts learn from the first step.
  /// - linear, bag_of_words: only a linear map. Each program defines its input features.
  enum class Kind { mot, mot_per_patch, ffn_moe, attention_absent, multi_head, linear, bag_of_words };

  Kind kind = Kind::mot;
  Index experts = 1;

  std::string name() const {
    static constexpr const char* names[] = {"mot",        "mot_per_patch", "ffn_moe",     "attention_absent",
                                            "multi_head", "linear",        "bag_of_words"};
    const std::string kind_name = names[static_cast<int>(kind)];
    return kind >= Kind::multi_head ? kind_name : kind_name + ".m" + std::to_string(experts);
  }
};

/// The optimizer of the router. The paper's theory uses gradient descent; its experiments name AdamW for all
/// parameters.
struct RouterOptimizer {
  using IsOptimizer = void;
  double lr = 1e-3;
  bool gradient_descent = false;

  template <class Pack>
  struct State {
    optim::AdamW::State<Pack> adamw;
    optim::Sgd::State<Pack> sgd;
    GATEFOLD_PACK(adamw, sgd)
  };
  template <class C, class Pack>
  State<Pack> begin(C& ctx, const Pack& params) const {
    return {optim::AdamW{}.begin(ctx, params), optim::Sgd{}.begin(ctx, params)};
  }
  template <class C, class Pack>
  void step(C& ctx, Pack& params, Pack& grads, State<Pack>& state) const {
    if (gradient_descent) {
      optim::Sgd{.lr = lr}.step(ctx, params, grads, state.sgd);
    } else {
      optim::AdamW{.lr = lr}.step(ctx, params, grads, state.adamw);
    }
  }
};

/// Options of the training of all models.
struct Recipe {
  Index epochs = 0, first = 0, second = 0;  // T, T₁, T₂ of the three stages
  Index batch = 64;                         // the paper's 256 would give too few steps
  double lr = 8e-4, decay = 0.01;           // AdamW of the experts: table 1 of the paper
  double router_lr = 8e-4;                  // same as lr, because the paper names one rate
  std::string router = "adamw";

  Json json() const {
    return {{"epochs", epochs}, {"t1", first},    {"t2", second},           {"batch", batch},
            {"lr", lr},         {"decay", decay}, {"router_lr", router_lr}, {"router", router}};
  }
};

/// Adds the command-line options of a recipe and of the transformer.
inline void add_recipe(CLI::App& app, Recipe& r, WholeTransformer& net) {
  const auto positive = CLI::Range(Index(1), Index(1) << 20);
  app.add_option("--epochs", r.epochs, "T: passes over the training items")->check(positive)->capture_default_str();
  app.add_option("--t1", r.first, "T1: last epoch of stage I, in which the experts learn without their attention")
      ->check(CLI::Range(Index(0), Index(1) << 20))
      ->capture_default_str();
  app.add_option("--t2", r.second, "T2: last epoch of stage II, in which the attention of the experts learns")
      ->check(CLI::Range(Index(0), Index(1) << 20))
      ->capture_default_str();
  app.add_option("--batch", r.batch, "items per step")->check(positive)->capture_default_str();
  app.add_option("--lr", r.lr, "learning rate of the experts (AdamW)")->check(above_zero())->capture_default_str();
  app.add_option("--decay", r.decay, "weight decay of the experts")->check(above_zero(true))->capture_default_str();
  app.add_option("--router", r.router, "optimizer of the router: adamw or gd")
      ->check(CLI::IsMember({"adamw", "gd"}))
      ->capture_default_str();
  app.add_option("--router-lr", r.router_lr, "learning rate of the router")->check(above_zero())->capture_default_str();
  app.add_option("--blocks", net.blocks, "transformer blocks of an expert")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app.add_option("--dim", net.model_dim, "width of a token, a multiple of --heads")
      ->check(positive)
      ->capture_default_str();
  app.add_option("--hidden", net.hidden_dim, "hidden width of a block")->check(positive)->capture_default_str();
  app.add_option("--heads", net.heads, "attention heads of a block")->check(positive)->capture_default_str();
}
/// @throws ArgumentError unless 0 <= t1 <= t2 <= epochs and the heads divide the width
inline void validate(const Recipe& r, const WholeTransformer& net) {
  expect(r.second >= r.first, "options", "--t2", Joined{"at least --t1 = ", r.first}, r.second);
  expect(r.epochs >= r.second, "options", "--epochs", Joined{"at least --t2 = ", r.second}, r.epochs);
  expect(net.model_dim % net.heads == 0, "options", "--heads", Joined{"a divisor of --dim = ", net.model_dim},
         net.heads);
}
inline Json json(const WholeTransformer& net) {
  return {{"token_dim", net.token_dim}, {"dim", net.model_dim}, {"hidden", net.hidden_dim}, {"heads", net.heads},
          {"length", net.length},       {"blocks", net.blocks}, {"outputs", net.outputs}};
}

/// Reduces epochs, stages, batch size and blocks for --quick. Options on the command line keep their values.
inline void make_quick(const CLI::App& app, Recipe& r, WholeTransformer& net) {
  unless_given(app, "--epochs", r.epochs, 6);
  unless_given(app, "--t1", r.first, 1);
  unless_given(app, "--t2", r.second, 4);
  unless_given(app, "--batch", r.batch, 32);
  unless_given(app, "--blocks", net.blocks, 1);
}

namespace learners {

/// Trains a mixture of transformers in three stages.
template <class TaskT, class GateT>
class Routed {
  using Mix = Mixture<GateT, WholeTransformer>;
  using Plan = Stages<optim::AdamW, optim::AdamW, optim::AdamW, RouterOptimizer>;
  using Target = typename TaskT::Loss::template Target<float, Cpu>;

 public:
  Routed(Cpu::Context& ctx, const Model& model, const GateT& gate, const WholeTransformer& net, const Recipe& r,
         Seed seed)
      : noise_(seed.fork(1)), stages_(ctx, Mix{gate, net}, typename TaskT::Loss{}, plan(model, r), seed.fork(0)) {
    if (model.kind == Model::Kind::attention_absent)
      for (auto& block : stages_.trainer.params.expert.blocks) fill(ctx, block.attention.output.view(), 0);
  }
  void begin_epoch() { stages_.begin_epoch(); }
  double step(View<const float, 2, Cpu> x, Target target) {
    typename decltype(stages_)::Extra extra;
    extra.selection.random = Random{noise_, steps_++};
    return stages_.step(x, target, extra).experts;
  }
  View<const float, 2, Cpu> predict(View<const float, 2, Cpu> x, Target target) {
    stages_.trainer.evaluate(x, target);
    return stages_.trainer.expert_output();
  }
  std::optional<metric::RoutingTable> routing(Cpu::Context& ctx, View<const Index, 1, Cpu> labels,
                                              Index classes) const {
    return metric::routing_table(ctx, stages_.trainer.saved.plan, labels, classes);
  }
  /// Adds the items of the last call of predict() to the measurements.
  void measure(Cpu::Context& ctx, RoutingMeasures& to) const {
    to.add(ctx, stages_.trainer.saved, stages_.trainer.expert_output());
  }
  Index parameters() const { return count_values(stages_.trainer.params); }

 private:
  static Plan plan(const Model& model, const Recipe& r) {
    const optim::AdamW adam{.lr = r.lr, .decay = r.decay};
    const bool absent = model.kind == Model::Kind::attention_absent;  // without attention, stage II trains nothing
    return {absent ? r.epochs : r.first,
            absent ? r.epochs : r.second,
            adam,
            adam,
            adam,
            RouterOptimizer{r.router_lr, r.router == "gd"},
            model.kind == Model::Kind::ffn_moe};
  }

  Seed noise_;
  std::uint64_t steps_ = 0;
  ThreeStage<float, Cpu::Context, Mix, typename TaskT::Loss, Plan> stages_;
};

/// Trains a model without a gate, all parameters from the first step on.
template <class TaskT, class ModelT>
class Plain {
  using Target = typename TaskT::Loss::template Target<float, Cpu>;

 public:
  Plain(Cpu::Context& ctx, const ModelT& model, const Recipe& r, Seed seed)
      : trainer_(ctx, model, typename TaskT::Loss{}, optim::AdamW{.lr = r.lr, .decay = r.decay}, seed.fork(0)) {}
  void begin_epoch() {}
  double step(View<const float, 2, Cpu> x, Target target) { return trainer_.step(x, target); }
  View<const float, 2, Cpu> predict(View<const float, 2, Cpu> x, Target target) {
    trainer_.evaluate(x, target);
    return trainer_.output();
  }
  std::optional<metric::RoutingTable> routing(Cpu::Context&, View<const Index, 1, Cpu>, Index) const { return {}; }
  void measure(Cpu::Context&, RoutingMeasures&) const {}
  Index parameters() const { return count_values(trainer_.params); }

 private:
  Trainer<float, Cpu::Context, ModelT, typename TaskT::Loss, optim::AdamW> trainer_;
};

}  // namespace learners

/// Trains for all epochs and tests after each of them. Tests have no noise.
///
/// @return score and training loss of each epoch. For a model with a gate, also the share of the test items that go to
///   each expert: of all items after each epoch, and of the items of each class after T₁, T₂ and T; and the
///   measurements of the routing after each epoch (log)
template <class TaskT, class LearnerT>
Json learn(Cpu::Context& ctx, LearnerT& learner, const Items& train, const Items& test, Index classes, const Recipe& r,
           Seed seed, const Report& report) {
  std::vector<Index> order(static_cast<std::size_t>(train.size()));
  Items batch;
  std::uint64_t step = 0;
  const auto gather = [&](Index first, Index count) {
    batch.x.resize(count, train.x.extent(1));
    batch.label.resize(count);
    batch.value.resize(train.value.extent(0) > 0 ? count : 0, 1);
    for (Index n = 0; n < count; ++n) {
      const Index item = order[static_cast<std::size_t>(first + n)];
      std::copy_n(&train.x(item, 0), train.x.extent(1), &batch.x(n, 0));
      batch.label(n) = train.label(item);
      if (batch.value.size() > 0) batch.value(n, 0) = train.value(item, 0);
    }
  };
  Json epochs = Json::array(), score = Json::array(), loss = Json::array(), share = Json::array(),
       routing = Json::object(), log = Json::object();
  for (Index epoch = 1; epoch <= r.epochs; ++epoch) {
    epochs.push_back(epoch);
    learner.begin_epoch();
    shuffle(order, seed.fork(2), epoch);
    double total = 0;
    for (Index first = 0; first < train.size(); first += r.batch) {
      const Index count = std::min(r.batch, train.size() - first);
      gather(first, count);
      if (train.augment) train.augment(ctx, batch.x, {seed.fork(5), step++});
      total += learner.step(batch.x, TaskT::target(batch, 0, count)) * static_cast<double>(count);
      report((static_cast<double>(epoch - 1) + static_cast<double>(first) / static_cast<double>(train.size())) /
             static_cast<double>(r.epochs));
    }
    loss.push_back(total / static_cast<double>(train.size()));

    double scored = 0;
    std::optional<metric::RoutingTable> table;
    RoutingMeasures measures;
    constexpr Index chunk = 256;
    for (Index first = 0; first < test.size(); first += chunk) {
      const Index count = std::min(chunk, test.size() - first);
      const auto target = TaskT::target(test, first, count);
      const auto y = learner.predict(test.x.view().rows(first, count), target);
      scored += TaskT::score(ctx, y, target) * static_cast<double>(count);
      learner.measure(ctx, measures);
      if (const auto part = learner.routing(ctx, test.label.view().rows(first, count), classes)) {
        if (!table)
          table.emplace(*part);
        else
          std::transform(part->counts.begin(), part->counts.end(), table->counts.begin(), table->counts.begin(),
                         std::plus{});
      }
    }
    score.push_back(TaskT::finish(scored / static_cast<double>(test.size())));
    if (!table) continue;
    Json shares = Json::array(), by_class = Json::array();
    for (Index e = 0; e < table->experts; ++e)
      shares.push_back(static_cast<double>(table->of_expert(e)) / static_cast<double>(test.size()));
    share.push_back(shares);
    measures.append(log);
    for (Index c = 0; c < classes; ++c) {
      by_class.push_back(Json::array());
      for (Index e = 0; e < table->experts; ++e) by_class.back().push_back(table->share_of_class(c, e));
    }
    if (epoch == r.first) routing["t1"] = by_class;
    if (epoch == r.second) routing["t2"] = by_class;
    if (epoch == r.epochs) {
      routing["end"] = by_class;
      routing["dispatch_entropy"] = metric::dispatch_entropy(*table);
    }
  }
  Json result{{"parameters", learner.parameters()}, {"epoch", epochs}, {"score", score}, {"loss", loss}};
  if (!share.empty()) result.update({{"share", share}, {"routing", routing}, {"log", log}});
  return result;
}

/// Trains a mixture of transformers with the given gate.
template <class TaskT, class GateT>
Json learn_routed(const Model& model, const GateT& gate, const WholeTransformer& net, const Items& train,
                  const Items& test, Index classes, const Recipe& r, Seed seed, const Report& report) {
  Cpu::Context ctx(1);
  learners::Routed<TaskT, GateT> learner(ctx, model, gate, net, r, seed);
  return learn<TaskT>(ctx, learner, train, test, classes, r, seed, report);
}
/// Trains one network on all items.
template <class TaskT, class NetworkT>
Json learn_alone(const NetworkT& network, const Items& train, const Items& test, Index classes, const Recipe& r,
                 Seed seed, const Report& report) {
  Cpu::Context ctx(1);
  learners::Plain<TaskT, NetworkT> learner(ctx, network, r, seed);
  return learn<TaskT>(ctx, learner, train, test, classes, r, seed, report);
}
/// Trains a transformer without a gate, or a mixture of transformers with the gate of paper 000. This gate is linear in
/// the sum over the positions, has no bias, and starts at zero.
template <class TaskT>
Json learn_transformer(const Model& model, const WholeTransformer& net, const Items& train, const Items& test,
                       Index classes, const Recipe& r, Seed seed, const Report& report) {
  if (model.kind == Model::Kind::multi_head) return learn_alone<TaskT>(net, train, test, classes, r, seed, report);
  const SoftmaxNoisyTop1 gate{.scores = {.model_dim = net.token_dim,
                                         .experts = model.experts,
                                         .length = net.length,
                                         .bias = false,
                                         .initial = Initial::zero()}};
  return learn_routed<TaskT>(model, gate, net, train, test, classes, r, seed, report);
}

}  // namespace studies
