#pragma once

#include <cstdint>
#include <gatefold/core/types.hpp>
#include <string>
#include <vector>

namespace images {

using gatefold::Index;

/// Options of the command line and the configuration file.
struct Options {
  std::string command = "train", config{}, run{};
  // The model.
  std::string backend = "cpu", router = "vmoe", update = "heavy-ball";
  double mu = 0.7, gamma = 1, tau = 8;
  Index patch = 4, depth = 4, dim = 64, heads = 4, experts = 8, k = 2, hidden = 128;
  // The images.
  std::string data = "/usr/share/datasets/fashion-mnist";
  Index train_images = 0;
  // Random changes of the training images.
  bool flip = false;
  Index crop = 0;
  double mixup = 0, label_smoothing = 0;
  // Training.
  Index batch = 128, steps = 1500, warmup = 100;
  double lr = 2e-3, decay = 0.05, clip = 1, dropout = 0.1;
  std::uint64_t seed = 1;
  // Intervals and limits.
  Index log = 10, validate = 250, valid_images = 2000, save = 100, stop = 0;
  int threads = 0;
  bool fresh = false;
  // Evaluation.
  Index test_images = 2000, attack_steps = 10, baseline_steps = 1500;
  double epsilon = 4.0 / 255;

  /// Calls f(name, value) for each option that must stay the same during a run, because the bits of the run depend on
  /// it.
  template <class F, class O>
  static void each_of_run(const F& f, O& o) {
    f("backend", o.backend);
    f("router", o.router);
    f("update", o.update);
    f("mu", o.mu);
    f("gamma", o.gamma);
    f("tau", o.tau);
    f("patch", o.patch);
    f("depth", o.depth);
    f("dim", o.dim);
    f("heads", o.heads);
    f("experts", o.experts);
    f("k", o.k);
    f("hidden", o.hidden);
    f("train-images", o.train_images);
    f("flip", o.flip);
    f("crop", o.crop);
    f("mixup", o.mixup);
    f("label-smoothing", o.label_smoothing);
    f("batch", o.batch);
    f("steps", o.steps);
    f("warmup", o.warmup);
    f("lr", o.lr);
    f("decay", o.decay);
    f("clip", o.clip);
    f("dropout", o.dropout);
    f("seed", o.seed);
    f("log", o.log);
    f("validate", o.validate);
    f("valid-images", o.valid_images);
  }
};

inline std::vector<std::string> backends() { return {"cpu", "cuda"}; }

}  // namespace images
