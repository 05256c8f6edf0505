#pragma once

#include <cstdio>
#include <gatefold/gatefold.hpp>
#include <string>

#include "evaluate.hpp"
#include "plot.hpp"
#include "run.hpp"

namespace images {

/// Prints the accuracy of the model on clean, corrupted and attacked images, next to the accuracy of a linear
/// classifier, which is trained here. Adds the results to `metrics` and draws the picture, unless `metrics` is null.
inline void report(Model& model, const Options& o, const Images& images, Metrics* metrics,
                   const training::Folder& folder) {
  const Outcome of_model = evaluate(model, o, images.test), of_linear = evaluate_linear(o, images);
  const auto errors = of_model.relative_to(of_linear);
  std::printf("\naccuracy in %%      this model   linear\n");
  const auto line = [](const char* name, double a, double b) {
    std::printf("%-18s %9.2f %9.2f\n", name, 100 * a, 100 * b);
  };
  line("clean", of_model.clean, of_linear.clean);
  line("fgsm", of_model.fgsm, of_linear.fgsm);
  line("pgd", of_model.pgd, of_linear.pgd);
  line("corrupted, mean", of_model.mean_corrupted(), of_linear.mean_corrupted());
  std::printf("\nseverity                1       2       3       4       5   error / linear's\n");
  for (std::size_t kind = 0; kind < kKinds; ++kind) {
    std::printf("%-18s", kCorruptions[kind].name);
    for (const double accuracy : of_model.corrupted[kind]) std::printf(" %7.2f", 100 * accuracy);
    std::printf("   %7.4f\n", errors.of[kind]);
  }
  std::printf("mean corruption error, relative to the linear classifier: %.4f\n", errors.mean);
  if (metrics == nullptr) return;
  Metrics::Json json{{"step", o.steps},
                     {"best_step", metrics->best(kGoal).first},
                     {"best_valid_accuracy", metrics->best(kGoal).second},
                     {"test_accuracy", of_model.clean},
                     {"fgsm_accuracy", of_model.fgsm},
                     {"pgd_accuracy", of_model.pgd},
                     {"epsilon", o.epsilon},
                     {"corrupted_accuracy", of_model.mean_corrupted()},
                     {"baseline", "linear"},
                     {"mean_corruption_error", errors.mean},
                     {"baseline_test_accuracy", of_linear.clean}};
  for (std::size_t kind = 0; kind < kKinds; ++kind)
    json["corrupted"][kCorruptions[kind].name] = of_model.corrupted[kind];
  metrics->add(std::move(json));
  metrics->write();
  draw(*metrics, of_model, of_linear, folder.picture().string());
}

inline void evaluate_run(const Options& o) {
  const Images images = read_images(o);
  const auto model = make_model(o);
  const training::Folder folder = folder_of(o);
  load(*model, folder.best(), images, o);
  report(*model, o, images, nullptr, folder);
}

}  // namespace images
