#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <gatefold/gatefold.hpp>
#include <gatefold/papers/corruption.hpp>
#include <gatefold/papers/pgd.hpp>
#include <iterator>
#include <vector>

#include "dataset.hpp"
#include "model.hpp"

namespace images {

using gatefold::kCorruptions;

inline constexpr Index kSeverities = 5;
inline constexpr std::size_t kKinds = kCorruptions.size();

/// Accuracies of a classifier, each between 0 and 1.
struct Outcome {
  double clean = 0, fgsm = 0, pgd = 0;
  std::array<std::array<double, kSeverities>, kKinds> corrupted{};

  /// Returns the errors under each corruption and severity, in the order that metric::corruption_error expects.
  std::vector<double> errors() const {
    std::vector<double> all;
    for (const auto& kind : corrupted)
      for (const double accuracy : kind) all.push_back(1 - accuracy);
    return all;
  }
  /// Returns the errors under corruption relative to the errors of a second classifier. All values are NaN if there is
  /// a corruption under which the second classifier makes no error.
  gatefold::metric::CorruptionError relative_to(const Outcome& baseline) const {
    for (const auto& kind : baseline.corrupted)
      if (std::all_of(kind.begin(), kind.end(), [](double accuracy) { return accuracy == 1; }))
        return {std::vector<double>(kKinds, std::nan("")), std::nan("")};
    return gatefold::metric::corruption_error(errors(), baseline.errors(), kSeverities);
  }
  double mean_corrupted() const {
    double sum = 0;
    for (const double error : errors()) sum += 1 - error;
    return sum / static_cast<double>(kKinds * kSeverities);
  }
};

/// Returns the share of the first `count` images that the model classifies correctly after change(). change(first, x,
/// labels) returns changed copies of the images x, whose numbers are first, first + 1, …
template <class F>
double accuracy_after(Model& model, const Set& set, Index count, const F& change) {
  constexpr Index kBatch = 250;
  Index right = 0;
  for (Index first = 0; first < count; first += kBatch) {
    const Index here = std::min(kBatch, count - first);
    const Pixels y = change(first, set.rows(first, here), set.labels_of(first, here));
    const std::vector<float> logits = model.classify(y);
    for (Index n = 0; n < here; ++n) {
      const float* const row = logits.data() + n * kClasses;
      right += std::max_element(row, row + kClasses) - row == set.labels[static_cast<std::size_t>(first + n)];
    }
  }
  return static_cast<double>(right) / static_cast<double>(count);
}
inline double accuracy(Model& model, const Set& set) {
  return accuracy_after(model, set, set.count(),
                        [](Index, ReadPixels x, Labels) { return Pixels(x.begin(), x.end()); });
}

/// Measures the clean accuracy on all images of a set, and the corrupted and attacked accuracy on its first
/// `test_images` images. The set must have at least `test_images` images.
inline Outcome evaluate(Model& model, const Options& o, const Set& set) {
  using gatefold::Cpu, gatefold::Noise, gatefold::Pgd, gatefold::Random, gatefold::Seed, gatefold::View;
  Cpu::Context ctx(o.threads);  // on the CPU, so that all backends get the same images
  Outcome found;
  found.clean = accuracy(model, set);
  for (std::size_t kind = 0; kind < kKinds; ++kind)
    for (Index severity = 1; severity <= kSeverities; ++severity) {
      const gatefold::Corrupt corrupt{kCorruptions[kind].kind, severity, kSide, kSide};
      const Seed stream = Seed{0}.fork(kind).fork(static_cast<std::uint64_t>(severity));
      found.corrupted[kind][static_cast<std::size_t>(severity - 1)] =
          accuracy_after(model, set, o.test_images, [&](Index first, ReadPixels x, Labels labels) {
            Pixels y(x.size());
            const Index count = std::ssize(labels);
            corrupt(ctx, View<const float, 2, Cpu>(x.data(), count, kPixels),
                    Random{stream, static_cast<std::uint64_t>(first)}, View<float, 2, Cpu>(y.data(), count, kPixels));
            return y;
          });
    }
  const auto attacked = [&](const Pgd& attack, bool anywhere) {
    return accuracy_after(model, set, o.test_images, [&](Index first, ReadPixels x, Labels labels) {
      const Noise start = anywhere ? Noise{Random{Seed{1}, static_cast<std::uint64_t>(first)}} : Noise{};
      return model.attack(attack, start, x, labels);
    });
  };
  found.fgsm = attacked(Pgd::fgsm({.epsilon = o.epsilon}), false);
  found.pgd = attacked({.epsilon = o.epsilon, .step = o.epsilon / 4, .steps = o.attack_steps}, true);
  return found;
}

/// Trains and evaluates softmax regression on the pixels, the baseline of the errors under corruption.
inline Outcome evaluate_linear(const Options& o, const Images& images) {
  Options of = o;
  of.router = "linear";
  of.update = "plain";
  of.steps = o.baseline_steps;
  of.warmup = 0;
  of.seed = 1;
  of.label_smoothing = 0;
  const auto model = make_model(of);
  Order order(images.train.count(), gatefold::Seed{of.seed}.fork(7));
  Pixels x(static_cast<std::size_t>(o.batch * kPixels));
  std::vector<Index> labels(static_cast<std::size_t>(o.batch));
  for (Index step = 0; step < of.steps; ++step) {
    order.batch(images.train, step, x, labels);
    model->step(x, labels);
  }
  return evaluate(*model, o, images.test);
}

}  // namespace images
