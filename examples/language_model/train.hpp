#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <gatefold/data/corpus.hpp>
#include <span>

#include "evaluate.hpp"
#include "metrics.hpp"
#include "model.hpp"
#include "progress.hpp"
#include "report.hpp"
#include "run.hpp"
#include "stop.hpp"
#include "text.hpp"

namespace language {

/// Steps until the last one, or until a signal. Whatever ends it, the state of the last step done is saved.
/// @return whether it is the last one
inline bool train_steps(Model& model, const Options& o, const Text& text, const Folder& folder, Metrics& metrics) {
  const gatefold::data::Corpus corpus{text.train, o.batch, o.length, gatefold::Seed{o.seed}.fork(1)};
  corpus.validate();
  const std::span<const TokenId> valid(text.valid.data(),
                                       std::min(text.valid.size(), static_cast<std::size_t>(o.valid_tokens)));
  const Metadata metadata = describe(o, text);
  const Index begun = model.steps(), last = o.stop > 0 ? std::min(o.stop, o.steps) : o.steps;
  Ids x(static_cast<std::size_t>(o.batch * o.length)), next(x.size());
  Stop stop;
  Progress progress(o, begun);
  // Metrics first: those beyond the state are forgotten, those before it would be missed.
  const auto save = [&] {
    metrics.write();
    model.save(folder.state(), metadata);
  };
  while (model.steps() < last && !stop.asked()) {
    corpus.batch(model.steps(), x, next);
    const double loss = model.step(x, next);
    const Index step = model.steps();
    progress.show(step, loss);
    if (step % o.log == 0) metrics.add({{"step", step}, {"loss", loss}});
    if (step % o.validate == 0 || step == o.steps) {
      const double now = bits(log_probabilities(model, o, "valid", valid));
      const bool better = now < metrics.best().second;
      metrics.add({{"step", step}, {"valid_bits", now}});
      if (better) model.save(folder.best(), metadata);
      progress.clear();
      std::printf("step %lld: bits per %s: training %.4f, validation %.4f%s\n", static_cast<long long>(step),
                  o.unit.c_str(), loss / std::log(2.0), now, better ? "" : ", not the best");
      std::fflush(stdout);
    }
    if (step % o.save == 0) save();
  }
  progress.clear();
  save();
  const Index trained = model.steps() - begun;
  if (trained > 0)
    std::printf("%lld steps in %.1f s, %.0f tokens/s with validation\n", static_cast<long long>(trained),
                progress.seconds(), static_cast<double>(trained * o.batch * o.length) / progress.seconds());
  if (model.steps() == o.steps) return true;
  std::printf("stopped at step %lld of %lld: the same command goes on, without --fresh\n",
              static_cast<long long>(model.steps()), static_cast<long long>(o.steps));
  std::fflush(stdout);
  if (stop.asked()) Stop::leave();
  return false;
}

inline void train(const Options& o) {
  // Everything that may be wrong is wrong before the first step.
  const Text text = read_text(o);
  const Folder folder{o.run};
  folder.begin(o.fresh);
  Metrics metrics(folder.metrics());
  auto model = make_model(o, text.vocabulary.size());
  if (std::filesystem::exists(folder.state())) {
    load(*model, folder.state(), text);
    metrics.reread(model->steps());
  }
  std::printf("%zu %ss to learn from, %lld different ones; %lld parameters; step %lld of %lld\n", text.train.size(),
              o.unit.c_str(), static_cast<long long>(text.vocabulary.size()),
              static_cast<long long>(model->parameters()), static_cast<long long>(model->steps()),
              static_cast<long long>(o.steps));
  std::fflush(stdout);
  if (!train_steps(*model, o, text, folder, metrics)) return;
  load(*model, folder.best(), text);
  report(*model, o, text, &metrics, folder);
  std::printf("\nit goes on:\n");
  say(*model, o, text.vocabulary);
  std::printf("\nin %s: state.safetensors, best.safetensors, metrics.jsonl, bits.svg\n", o.run.c_str());
}

}  // namespace language
