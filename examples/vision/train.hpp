#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

#include "../training/page.hpp"
#include "../training/steps.hpp"
#include "augmentation.hpp"
#include "dataset.hpp"
#include "evaluate.hpp"
#include "model.hpp"
#include "report.hpp"
#include "run.hpp"

namespace images {

/// Runs the training steps of a run.
/// @return true if the run has reached its last step
inline bool take_steps(Model& model, const Options& o, const Images& images, const training::Folder& folder,
                       Metrics& metrics) {
  Order order(images.train.count(), gatefold::Seed{o.seed}.fork(7));
  Pixels x(static_cast<std::size_t>(o.batch * kPixels));
  std::vector<Index> labels(static_cast<std::size_t>(o.batch));
  Augmentation augmentation(o);
  const auto step = [&] {
    order.batch(images.train, model.steps(), x, labels);
    return augmentation.step(model, x, labels);
  };
  const auto validate = [&] { return accuracy(model, images.valid); };
  const auto routing = [&] { return model.routing(images.valid.rows(0, std::min(o.batch, o.valid_images))); };
  const auto say = [](double loss, double now) {
    char line[120];
    std::snprintf(line, sizeof line, "training loss %.4f, accuracy on validation %.2f %%", loss, 100 * now);
    return std::string(line);
  };
  return training::take_steps(model, o, folder, training::describe("vision", "images", images.hash(), o), metrics,
                              kGoal, {"images", o.batch}, step, validate, routing, say);
}

inline void train(const Options& o) {
  // All input is checked before the first training step.
  const Images images = read_images(o);
  const training::Folder folder = folder_of(o);
  folder.make();
  const auto model = make_model(o);
  Metrics metrics(folder.metrics());
  if (!o.fresh && std::filesystem::exists(folder.state())) {
    load(*model, folder.state(), images, o);
    metrics.reread(model->steps(), kGoal, o);
    // The best model is evaluated at the end. Loading it now reports a damaged file early.
    if (metrics.best(kGoal).first > 0) {
      load(*model, folder.best(), images, o);
      load(*model, folder.state(), images, o);
    }
  }
  std::cout << model->summary() << std::flush;
  std::printf("%lld images to learn from; %lld parameters; step %lld of %lld\n",
              static_cast<long long>(images.train.count()), static_cast<long long>(model->parameters()),
              static_cast<long long>(model->steps()), static_cast<long long>(o.steps));
  std::fflush(stdout);
  if (!take_steps(*model, o, images, folder, metrics)) return;
  load(*model, folder.best(), images, o);
  report(*model, o, images, &metrics, folder);
  training::write_page(folder, training::describe("vision", "images", images.hash(), o), metrics);
  std::printf("\nin %s: %s\n", o.run.c_str(), folder.files().c_str());
}

}  // namespace images
