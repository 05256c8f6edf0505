#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <gatefold/data/corpus.hpp>
#include <iostream>
#include <memory>
#include <span>
#include <string>

#include "../training/page.hpp"
#include "../training/shards_page.hpp"
#include "../training/steps.hpp"
#include "evaluate.hpp"
#include "model.hpp"
#include "ngram.hpp"
#include "report.hpp"
#include "run.hpp"
#include "text.hpp"

namespace language {

/// Returns the object that draws the training batches.
inline gatefold::data::Corpus corpus_of(const Options& o, const Text& text) {
  return {text.train, o.batch, o.length, gatefold::Seed{o.seed}.fork(1)};
}
/// Returns the tokens on which validation runs during training.
inline std::span<const TokenId> validation_of(const Options& o, const Text& text) {
  return {text.valid.data(), std::min(text.valid.size(), static_cast<std::size_t>(o.valid_tokens))};
}

/// Runs the training steps of a run.
/// @return true if the run has reached its last step
inline bool take_steps(Model& model, const Options& o, const Text& text, const training::Folder& folder,
                       Metrics& metrics, const training::Role& role) {
  const gatefold::data::Corpus corpus = corpus_of(o, text);
  const std::span<const TokenId> valid = validation_of(o, text);
  Ids x(static_cast<std::size_t>(o.batch * o.length)), next(x.size());
  const auto step = [&] {
    corpus.batch(model.steps(), x, next);
    return model.step(x, next);
  };
  const auto validate = [&] { return bits(log_probabilities(model, o, "valid", valid)); };
  const Ids seen(valid.begin(),
                 valid.begin() + std::min(o.batch, static_cast<Index>(valid.size()) / o.length) * o.length);
  const auto routing = [&] { return model.routing(seen); };
  const auto say = [&](double loss, double now) {
    char line[120];
    std::snprintf(line, sizeof line, "bits per %s: training %.4f, validation %.4f", o.unit.c_str(),
                  loss / std::log(2.0), now);
    return std::string(line);
  };
  return training::take_steps(model, o, folder, describe(o, text), metrics, kGoal, {"tokens", o.batch * o.length}, step,
                              validate, routing, say, role);
}

/// Runs a first training step, and measures three more. Prints the mean time of a step and an estimate for all steps.
inline void estimate(Model& model, const Options& o, const Text& text) {
  constexpr Index steps = 3;
  const gatefold::data::Corpus corpus = corpus_of(o, text);
  Ids x(static_cast<std::size_t>(o.batch * o.length)), next(x.size());
  std::chrono::duration<double> taken{};
  for (Index i = 0; i <= steps; ++i) {
    corpus.batch(i, x, next);
    const auto begin = std::chrono::steady_clock::now();
    model.step(x, next);
    if (i > 0) taken += std::chrono::steady_clock::now() - begin;  // the first step allocates memory
  }
  const double seconds = taken.count() / steps;
  std::printf("a step of %zu tokens takes %.3g s, %lld steps take %.3g hours\n", x.size(), seconds,
              static_cast<long long>(o.steps), static_cast<double>(o.steps) * seconds / 3600);
}

/// Begins or continues a run. With the option `dry_run`, prints an estimate instead.
/// @param make  make(options, size of the vocabulary) returns the model to train
template <class Make>
void train(const Options& o, const training::Role& role, const Make& make) {
  // All input is checked before the first training step.
  const Text text = read_text(o);
  const training::Folder folder = folder_of(o);
  corpus_of(o, text).validate();
  expect_tokens(o, "valid-tokens", validation_of(o, text));
  expect_tokens(o, "test", text.test);
  expect_ngrams(o, text);
  if (role.reports && !o.dry_run) {
    expect_writable(o.log_probabilities);
    folder.make();
  }
  std::unique_ptr<Model> model = make(o, text.vocabulary.size());
  const auto print_sizes = [&] {
    // All shards must call parameters(), which adds up the numbers of all shards. So this call precedes the return.
    const auto parameters = static_cast<long long>(model->parameters());
    if (!role.reports) return;
    if (role.alone) std::cout << model->summary() << std::flush;
    std::printf("%zu %ss to learn from, %lld different ones; %lld parameters; step %lld of %lld\n", text.train.size(),
                o.unit.c_str(), static_cast<long long>(text.vocabulary.size()), parameters,
                static_cast<long long>(model->steps()), static_cast<long long>(o.steps));
    std::fflush(stdout);
  };
  if (o.dry_run) {
    print_sizes();
    return estimate(*model, o, text);
  }
  role.any(false);  // waits until the folder of the run exists
  Metrics metrics(folder.metrics());
  if (!o.fresh && std::filesystem::exists(folder.state())) {
    load(*model, folder.state(), text, o);
    metrics.reread(model->steps(), kGoal, o);
    // The best model is evaluated at the end. Loading it now reports a damaged file early.
    if (metrics.best(kGoal).first > 0) {
      load(*model, folder.best(), text, o);
      load(*model, folder.state(), text, o);
    }
  }
  print_sizes();
  const bool ended = take_steps(*model, o, text, folder, metrics, role);
  training::write_shards(folder, model->shards());
  if (!ended || !role.reports) return;
  if (!role.alone) model = make_model(o, text.vocabulary.size());
  load(*model, folder.best(), text, o);
  report(*model, o, text, &metrics, folder);
  training::write_page(folder, describe(o, text), metrics);
  std::printf("\nit goes on:\n");
  say(*model, o, text.vocabulary);
  std::printf("\nin %s: %s\n", o.run.c_str(), folder.files().c_str());
}

}  // namespace language
