#pragma once

#include <cstdint>
#include <gatefold/core/types.hpp>
#include <string>
#include <vector>

namespace language {

using gatefold::Index;

/// Options of the command line and the configuration file.
struct Options {
  std::string command = "train", config{}, run{};
  // The model.
  std::string backend = "cpu", layout = "switch", update = "heavy-ball", initial = "fan-in";
  double mu = 0.7, gamma = 1, dropout = 0, expert_dropout = 0;
  Index blocks = 4, dim = 128, heads = 4, experts = 8, k = 2, hidden = 256, length = 64;
  // The text.
  std::string data{}, text{}, unit = "character";
  Index threshold = 1;
  int order = 0;
  // Training.
  Index batch = 16, accumulate = 1, steps = 4500, warmup = 100;
  bool recompute = false;
  Index shards = 0, rebalance = 0;
  std::string decayed = "weights";
  double lr = 3e-3, floor = 0.02, decay = 0.01, clip = 1, balance = 0.01;
  std::uint64_t seed = 1;
  // Intervals and limits.
  Index log = 10, validate = 500, valid_tokens = 32768, save = 250, stop = 0;
  int threads = 0;
  bool fresh = false, dry_run = false;
  // Evaluation and generation.
  std::string weights = "float";
  std::string prompt{}, log_probabilities{};
  Index tokens = 400;
  bool no_cache = false;
  double temperature = 0.8, top_p = 0.95;
  std::uint64_t draw = 1;

  /// Calls f(name, value) for each option that must stay the same during a run, because the bits of the run depend on
  /// it.
  template <class F, class O>
  static void each_of_run(const F& f, O& o) {
    f("backend", o.backend);
    f("layout", o.layout);
    f("initial", o.initial);
    f("update", o.update);
    f("mu", o.mu);
    f("gamma", o.gamma);
    f("dropout", o.dropout);
    f("expert-dropout", o.expert_dropout);
    f("blocks", o.blocks);
    f("dim", o.dim);
    f("heads", o.heads);
    f("experts", o.experts);
    f("k", o.k);
    f("hidden", o.hidden);
    f("length", o.length);
    f("unit", o.unit);
    f("threshold", o.threshold);
    f("batch", o.batch);
    f("accumulate", o.accumulate);
    f("shards", o.shards);
    f("steps", o.steps);
    f("warmup", o.warmup);
    f("lr", o.lr);
    f("floor", o.floor);
    f("decay", o.decay);
    f("decayed", o.decayed);
    f("clip", o.clip);
    f("balance", o.balance);
    f("seed", o.seed);
    f("log", o.log);
    f("validate", o.validate);
    f("valid-tokens", o.valid_tokens);
  }
};

inline std::vector<std::string> backends() { return {"cpu", "cpu-bf16", "cuda", "cuda-bf16"}; }
inline bool is_on_cuda(const Options& o) { return o.backend.starts_with("cuda"); }

inline std::vector<std::string> layouts() { return {"switch", "glam"}; }
inline std::vector<std::string> initials() { return {"fan-in", "reference"}; }

/// Returns the names of the update rules. has_mu() is true for a rule with a momentum μ, has_gamma() for one with a
/// step size γ.
inline std::vector<std::string> updates() {
  return {"plain", "heavy-ball", "adam", "robust", "nesterov", "time-varying"};
}
inline bool has_gamma(const std::string& update) { return update != "plain" && update != "robust"; }
inline bool has_mu(const std::string& update) { return has_gamma(update) && update != "time-varying"; }

}  // namespace language
