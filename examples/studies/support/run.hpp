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

/// Tells how far a run is, from 0 to 1; may be called as often as one likes. Throws, to end the run, after another one
/// failed.
using Report = std::function<void(double share)>;

/// One run: its file name, everything its result depends on, and what computes it.
struct Run {
  std::string name;  // unique, of [a-z0-9_.-]: "mlp.p4.m16.seed3" → out/runs/<name>.json
  Json options;      // all that the result depends on; a stored run of others is computed anew
  std::function<Json(const Report&)> compute;  // deterministic, on one thread: makes its own Cpu::Context ctx(1)
  double cost = 1;                             // beside the other runs: for the time left, and the dearest begin first
};

/// Add the runs of one setting, a seed each: <name>.seed<s>, with the seed among the options.
/// @param make  (seed) → Run, without its name
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
