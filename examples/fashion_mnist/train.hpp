#pragma once

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <gatefold/io.hpp>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "dataset.hpp"
#include "evaluate.hpp"
#include "network.hpp"
#include "options.hpp"
#include "plot.hpp"
#include "progress.hpp"
#include "report.hpp"
#include "table.hpp"

namespace fashion {

/// Shuffles the images of an epoch. The order depends only on the seed and the epoch.
inline void shuffle(std::vector<Index>& order, Seed seed, Index epoch) {
  std::iota(order.begin(), order.end(), Index(0));
  for (std::size_t i = order.size(); i > 1; --i) {
    const double u = uniform<double>(seed.fork(7), static_cast<std::uint64_t>(epoch), i);
    std::swap(order[i - 1], order[static_cast<std::size_t>(u * static_cast<double>(i))]);
  }
}

/// Returns the metadata that a checkpoint must have so that a run with the options `o` can evaluate or continue it. The
/// tensors of the checkpoint must also have the shapes of the model.
inline io::Metadata describe(const Options& o) {
  return {{"program", "gatefold fashion_mnist"},
          {"gate", o.gate},
          {"update", o.update},
          {"k", std::to_string(o.k)},
          {"patch", std::to_string(o.patch)}};
}

/// @throws FileError unless the metadata of a checkpoint have the expected values
inline void expect_made_with(const std::string& path, const io::Metadata& found, const io::Metadata& expected) {
  for (const auto& [key, value] : expected) {
    const auto made_with = found.find(key);
    if (made_with == found.end() || made_with->second != value)
      throw FileError(path + ": metadata: expected " + key + " = " + value + ", got " +
                      (made_with == found.end() ? std::string("nothing") : made_with->second));
  }
}

/// Returns the number of host threads that a context computes with.
template <class C>
int threads(const C& ctx) {
  if constexpr (requires { ctx.threads(); }) {
    return ctx.threads();
  } else {
    return 1;
  }
}

template <class C, class RuleT, class GateT, class ScoresT, class PlaceT>
void train_with(C& ctx, const Options& o, const RuleT& rule, const GateT& gate, const ScoresT& scores,
                const PlaceT& place) {
  using B = typename C::Backend;
  using Clock = std::chrono::steady_clock;
  const auto model = network(o, rule, gate, place);

  // Options, data and checkpoint are checked before the first step.
  const Dataset images_to_learn = load(o.data, "train", o.patch), test = load(o.data, "t10k", o.patch);
  const Index steps = images_to_learn.count / o.batch;
  expect(steps >= 1, "fashion_mnist", "--batch", "at most " + std::to_string(images_to_learn.count), o.batch);
  const optim::Scheduled optimizer{
      optim::Clipped{optim::AdamW{.lr = o.lr, .decay = 0.01}, 1.0},
      optim::WarmupCosine{.warmup = 100, .total = std::max<Index>(101, steps * o.epochs), .floor = 0.02}};
  Trainer trainer{ctx, model, place.loss(CrossEntropy{}), place.optimizer(optimizer), Seed{o.seed}};
  io::Metadata order_of_data{{"batch", std::to_string(o.batch)}, {"images", std::to_string(images_to_learn.count)}};
  if (o.shards > 0) order_of_data["shards"] = std::to_string(o.shards);
  const Index last = o.steps > 0 ? std::min(o.steps, steps * o.epochs) : steps * o.epochs;
  if (!o.load.empty()) {
    expect_made_with(o.load, io::read_metadata(o.load), describe(o));
    const io::Metadata found = place.load(o.load, trainer);
    if (trainer.state.step < last) expect_made_with(o.load, found, order_of_data);
  }
  const Index begun = trainer.state.step;

  Picture picture;
  picture.class_names.assign(kClassNames.begin(), kClassNames.end());
  picture.first_epoch = static_cast<double>(begun / steps + 1);
  Progress progress(o.epochs, steps * o.batch);
  std::vector<Index> order(static_cast<std::size_t>(images_to_learn.count));
  const dist::Range mine = place.part_of(o.batch);
  std::vector<float> images(static_cast<std::size_t>(mine.count * kPixels));
  std::vector<Index> labels(static_cast<std::size_t>(mine.count));
  const auto evaluate_on_test = [&] {
    return place.in_one_process(trainer, network(o, rule, gate), [&](const auto& layer, const auto& params) {
      return evaluate(ctx, layer, params, test, o);
    });
  };
  Batch<B> batch;
  const auto start = Clock::now();
  double test_seconds = 0;
  Outcome outcome;
  for (Index epoch = begun / steps; trainer.state.step < last; ++epoch) {
    shuffle(order, trainer.seed, epoch);
    if (place.reports()) progress.begin(epoch + 1);
    const Index first = trainer.state.step % steps, end = std::min(steps, first + last - trainer.state.step);
    double loss = 0, interval_loss = 0;
    Index correct = 0, interval = 0;
    for (Index step = first; step < end; ++step) {
      const auto from = static_cast<std::size_t>(step * o.batch + mine.first);
      gather(images_to_learn, std::span<const Index>(order).subspan(from, labels.size()), images.data(), labels.data());
      batch.read(ctx, mine.count, kPixels, images.data(), labels.data());
      const double batch_loss = trainer.step(batch.images, batch.labels);
      correct += place.sum(count_correct(to_host(ctx, trainer.output()), labels.data()));
      loss += batch_loss;
      interval_loss += batch_loss;
      const Index seen = step + 1 - first;
      if (++interval == 50 || step + 1 == end) {
        picture.step.push_back(static_cast<double>(epoch * steps + step + 1));
        picture.loss.push_back(interval_loss / static_cast<double>(interval));
        interval_loss = 0;
        interval = 0;
      }
      if (place.reports())
        progress.update((step + 1) * o.batch, loss / static_cast<double>(seen),
                        static_cast<double>(correct) / static_cast<double>(seen * o.batch));
    }
    if (place.reports()) progress.clear();
    const auto pause = Clock::now();
    outcome = evaluate_on_test();
    test_seconds += std::chrono::duration<double>(Clock::now() - pause).count();
    picture.train_accuracy.push_back(static_cast<double>(correct) / static_cast<double>((end - first) * o.batch));
    picture.test_accuracy.push_back(outcome.accuracy);
    picture.busiest.push_back(busiest_shares(outcome));
    if (!place.reports()) continue;
    std::printf("epoch %lld: training loss %.4f, training accuracy %.2f %%, test accuracy %.2f %%\n",
                static_cast<long long>(epoch + 1), loss / static_cast<double>(end - first),
                100 * picture.train_accuracy.back(), 100 * outcome.accuracy);
    std::fflush(stdout);
  }
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count() - test_seconds;
  const Index trained = trainer.state.step - begun;
  if (trained == 0) outcome = evaluate_on_test();
  if (!o.save.empty()) {
    order_of_data.merge(describe(o));
    place.save(o.save, trainer, order_of_data);
  }

  // Measures whether the mixture matters: evaluates the same parameters with random routing, then with the output of
  // every expert set to zero.
  const auto random_model = as_layer<float, B>(network(
      o, rule, ComposedGate<LinearScores, Independent, RandomK>{.scores = scores, .mixing = {}, .selection = {o.k}}));
  Extra<std::remove_cvref_t<decltype(random_model)>, float, B> extra;
  std::get<1>(std::get<0>(extra.layers).layers).selection = Random{trainer.seed.fork(8), 0};
  const auto [random_accuracy, zeroed_accuracy] =
      place.in_one_process(trainer, network(o, rule, gate), [&](const auto&, const auto& params) {
        auto random_params = random_model.template init<float, B>(ctx, Seed{0});
        copy_pack(ctx, params, random_params);
        const double random = evaluate(ctx, random_model, random_params, test, o, extra).accuracy;
        for_each_tensor(
            [&](const Name& name, auto& t) {
              if (name.str().find(".expert.down") != std::string::npos) fill(ctx, t.view(), 0);
            },
            random_params);
        return std::pair{random, evaluate(ctx, random_model, random_params, test, o, extra).accuracy};
      });
  const Index parameters = place.parameters(trainer.params);
  if (!place.reports()) return;

  std::printf("\nPicks on the test set\n");
  print_picks(outcome.picks);
  std::printf("\ntest accuracy %.2f %% (%.2f %% routed at random, %.2f %% without experts), trained in %.1f s\n",
              100 * outcome.accuracy, 100 * random_accuracy, 100 * zeroed_accuracy, seconds);

  picture.routing = outcome.routing;
  nlohmann::ordered_json metrics{
      {"test_accuracy", outcome.accuracy},
      {"test_loss", outcome.loss},
      {"test_accuracy_random_routing", random_accuracy},
      {"test_accuracy_without_experts", zeroed_accuracy},
      {"train_seconds", seconds},
      {"images_per_second", seconds > 0 ? static_cast<double>(trained * o.batch) / seconds : 0.0},
      {"parameters", parameters},
      {"seed", trainer.seed.value},
      {"threads", threads(ctx)},
      {"options",
       {{"backend", o.backend},
        {"gate", o.gate},
        {"update", o.update},
        {"experts", o.experts},
        {"k", o.k},
        {"layers", o.layers},
        {"dim", o.dim},
        {"hidden", o.hidden},
        {"patch", o.patch},
        {"epochs", o.epochs},
        {"batch", o.batch},
        {"lr", o.lr},
        {"balance", o.balance}}},
      {"first_epoch", begun / steps + 1},
      {"train_accuracy_per_epoch", picture.train_accuracy},
      {"test_accuracy_per_epoch", picture.test_accuracy},
      {"layers", nlohmann::ordered_json::array()}};
  for (std::size_t l = 0; l < outcome.picks.size(); ++l)
    metrics["layers"].push_back({{"expert_tokens", outcome.picks[l]}, {"expert_by_class", outcome.routing[l]}});
  if (!o.json.empty()) write_report(o.json, metrics);
  if (!o.picture.empty()) draw(picture, o.picture);
  for (const auto& [what, path] : {std::pair{"metrics", &o.json}, {"picture", &o.picture}, {"checkpoint", &o.save}})
    if (!path->empty()) std::printf("%s: %s\n", what, path->c_str());
}

/// Trains a model with the gate `softmax` on the backend of ctx, in one process or on shards (`place`).
template <class C, class RuleT, class PlaceT = training::OneProcess>
void train_softmax(C& ctx, const Options& o, const RuleT& rule, const PlaceT& place = {}) {
  using Gate = WithAuxiliary<SoftmaxTopK, Balance>;
  const LinearScores scores{.model_dim = o.dim, .experts = o.experts};
  const Balance balance{.weight = o.balance};
  train_with(ctx, o, rule, Gate{.scores = scores, .mixing = {}, .selection = {.k = o.k}, .auxiliary = {balance}},
             scores, place);
}
template <class C, class RuleT, class PlaceT = training::OneProcess>
void train_dense(C& ctx, const Options& o, const RuleT& rule, const PlaceT& place = {}) {
  using Gate = WithAuxiliary<SoftmaxDense, Balance>;
  const LinearScores scores{.model_dim = o.dim, .experts = o.experts};
  const Balance balance{.weight = o.balance};
  train_with(ctx, o, rule, Gate{.scores = scores, .mixing = {}, .selection = {}, .auxiliary = {balance}}, scores,
             place);
}
/// Trains a model with the gate that the options select.
template <class C, class RuleT, class PlaceT = training::OneProcess>
void train(C& ctx, const Options& o, const RuleT& rule, const PlaceT& place = {}) {
  o.gate == "softmax" ? train_softmax(ctx, o, rule, place) : train_dense(ctx, o, rule, place);
}

}  // namespace fashion
