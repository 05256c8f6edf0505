#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <gatefold/metric/load.hpp>
#include <utility>
#include <vector>

#include "../../vision/evaluate.hpp"
#include "../support/numbers.hpp"
#include "../support/run.hpp"
#include "cases.hpp"

namespace studies::vision {

/// Appends measurements of each mixture to the lists of `log`: log[name][point][mixture]. Soft MoE and softmax
/// regression have no measurements.
inline void measure(images::Model& model, const images::Options& o, const images::Set& test, Json& log) {
  constexpr Index most = 256;  // few, because this is done 50 times in a run
  const auto all = model.routing(test.rows(0, std::min(most, o.test_images)));
  if (all.empty()) return;
  // Every second layer has a mixture. If the update rule evaluates its branch twice, `all` has each mixture twice.
  const std::size_t calls = std::max<std::size_t>(all.size() / static_cast<std::size_t>(o.depth / 2), 1);
  Json entropy = Json::array(), variation = Json::array();
  for (std::size_t at = 0; at < all.size(); at += calls) {
    entropy.push_back(rounded(all[at].entropy));
    variation.push_back(rounded(gatefold::metric::Load{all[at].load}.coefficient_of_variation()));
  }
  log["entropy"].push_back(std::move(entropy));
  log["load_variation"].push_back(std::move(variation));
}

/// Trains a case and evaluates the model after the last step. All cases train for the same number of steps.
inline Json learn(const Case& c, images::Options o, const images::Images& of, std::uint64_t seed,
                  const Report& report) {
  o.seed = seed;
  if (c.name == baseline_of_errors()) o.router = "linear";
  const auto model = images::make_model(o);
  images::Order order(of.train.count(), gatefold::Seed{seed}.fork(7));
  images::Pixels x(static_cast<std::size_t>(o.batch * images::kPixels));
  std::vector<Index> labels(static_cast<std::size_t>(o.batch));
  Json curve{{"step", Json::array()}, {"loss", Json::array()}}, log = Json::object();
  const Index every = std::max<Index>(o.steps / 50, 1);
  double loss = 0;
  for (Index step = 0; step < o.steps; ++step) {
    order.batch(of.train, step, x, labels);
    loss += model->step(x, labels) / static_cast<double>(every);
    if ((step + 1) % every == 0) {
      curve["step"].push_back(step + 1);
      curve["loss"].push_back(loss);
      measure(*model, o, of.test, log);
      loss = 0;
    }
    report(0.9 * static_cast<double>(step) / static_cast<double>(o.steps));
  }
  const images::Outcome found = images::evaluate(*model, o, of.test);
  Json result{{"clean", found.clean}, {"fgsm", found.fgsm}, {"pgd", found.pgd}, {"parameters", model->parameters()},
              {"curve", curve},       {"log", log}};
  for (std::size_t kind = 0; kind < images::kKinds; ++kind)
    result["corrupted"][images::kCorruptions[kind].name] = found.corrupted[kind];
  return result;
}

}  // namespace studies::vision
