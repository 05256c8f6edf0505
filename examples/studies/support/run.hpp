#pragma once

#include <cstdint>
#include <functional>
#include <gatefold/core/types.hpp>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace studies {

using gatefold::Index;
using Json = nlohmann::ordered_json;

/// A function that reports the progress of a run, from 0 to 1. It can be called often. If a different run has failed,
/// it throws, to end this run.
using Report = std::function<void(double share)>;

/// One run: its file name, all values that its result depends on, and the function that computes it.
struct Run {
  std::string name;  // unique, of [a-z0-9_.-]: "mlp.p4.m16.seed3" → out/runs/<name>.json
  Json options;      // the values that the result depends on; a stored run with different options is computed anew
  std::function<Json(const Report&)> compute;  // deterministic, on one thread with its own context
  double cost = 1;                             // relative to other runs; expensive runs begin first
};

/// Adds the runs of one setting, one per seed. A run has the name <name>.seed<s>, and the seed is one of its options.
/// @param first  the first seed
/// @param make   make(seed) returns the run of a seed; add_seeds() sets the name of the run
template <class F>
void add_seeds(std::vector<Run>& runs, const std::string& name, std::uint64_t first, Index seeds, const F& make) {
  for (Index i = 0; i < seeds; ++i) {
    const std::uint64_t seed = first + static_cast<std::uint64_t>(i);
    Run run = make(seed);
    run.name = name + ".seed" + std::to_string(seed);
    run.options["seed"] = seed;
    runs.push_back(std::move(run));
  }
}

}  // namespace studies
