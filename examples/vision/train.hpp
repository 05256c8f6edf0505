#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <vector>

#include "../language_model/metrics.hpp"
#include "../language_model/stop.hpp"
#include "dataset.hpp"
#include "evaluate.hpp"
#include "model.hpp"
#include "progress.hpp"
#include "report.hpp"
#include "run.hpp"

namespace images {

/// Steps until the last one, or until a signal. Whatever ends it, the state of the last step done is saved.
/// @return whether it is the last one
inline bool train_steps(Model& model, const Options& o, const Images& images, const Folder& folder,
                        language::Metrics& metrics) {
  const Metadata metadata = describe(o, images);
  const Index begun = model.steps(), last = o.stop > 0 ? std::min(o.stop, o.steps) : o.steps;
  Order order(images.train.count(), gatefold::Seed{o.seed}.fork(7));
  Pixels x(o.batch, kPixels);
  std::vector<Index> labels(static_cast<std::size_t>(o.batch));
  language::Stop stop;
  Progress progress(o, begun);
  // Metrics first: those beyond the state are forgotten, those before it would be missed.
  const auto save = [&] {
    metrics.write();
    model.save(folder.state(), metadata);
  };
  while (model.steps() < last && !stop.asked()) {
    order.batch(images.train, model.steps(), x, labels);
    const double loss = model.step(x, {labels.data(), o.batch});
    const Index step = model.steps();
    progress.show(step, loss);
    if (step % o.log == 0) metrics.add({{"step", step}, {"loss", loss}});
    if (step % o.validate == 0 || step == o.steps) {
      const double now = accuracy(model, images.valid);
      const bool better = now > best(metrics).second;
      metrics.add({{"step", step}, {"valid_accuracy", now}});
      if (better) model.save(folder.best(), metadata);
      progress.clear();
      std::printf("step %lld: training loss %.4f, accuracy on validation %.2f %%%s\n", static_cast<long long>(step),
                  loss, 100 * now, better ? "" : ", not the best");
      std::fflush(stdout);
    }
    if (step % o.save == 0) save();
  }
  progress.clear();
  save();
  const Index trained = model.steps() - begun;
  if (trained > 0)
    std::printf("%lld steps in %.1f s, %.0f images/s with validation\n", static_cast<long long>(trained),
                progress.seconds(), static_cast<double>(trained * o.batch) / progress.seconds());
  if (model.steps() == o.steps) return true;
  std::printf("stopped at step %lld of %lld: the same command goes on, without --fresh\n",
              static_cast<long long>(model.steps()), static_cast<long long>(o.steps));
  std::fflush(stdout);
  if (stop.asked()) language::Stop::leave();
  return false;
}

inline void train(const Options& o) {
  // Everything that may be wrong is wrong before the first step.
  const Images images = read_images(o);
  const Folder folder{o.run};
  folder.begin(o.fresh);
  language::Metrics metrics(folder.metrics());
  const auto model = make_model(o);
  if (std::filesystem::exists(folder.state())) {
    load(*model, folder.state(), images);
    metrics.reread(model->steps());
  }
  std::printf("%lld images to learn from; %lld parameters; step %lld of %lld\n",
              static_cast<long long>(images.train.count()), static_cast<long long>(model->parameters()),
              static_cast<long long>(model->steps()), static_cast<long long>(o.steps));
  std::fflush(stdout);
  if (!train_steps(*model, o, images, folder, metrics)) return;
  load(*model, folder.best(), images);
  report(*model, o, images, &metrics, folder);
  std::printf("\nin %s: state.safetensors, best.safetensors, metrics.jsonl, accuracy.svg\n", o.run.c_str());
}

}  // namespace images
