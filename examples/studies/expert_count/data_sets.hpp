#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "reference.hpp"

/// Measures how much the mean of several runs depends on their data set, because the ten published runs of a mixture
/// have the same data set. Draws several data sets. Trains the linear mixture on each of them several times, with
/// different initial weights and noise.
namespace studies::expert_count::data_sets {

inline std::string label(Index setting, Index data) {
  return reference::label(setting, "moe", true) + ".data" + std::to_string(data);
}

inline void add(const Options& o, Jobs& jobs) {
  for (const Index s : reference::settings(o))
    for (Index data = 1; data <= o.data_sets; ++data)
      jobs.add(label(s, data), o.common.seeds, [&o, s, data](std::uint64_t seed) {
        const ReferenceRun r{
            s, true, o.base.train, o.base.test, o.base.iterations, seed, static_cast<std::uint64_t>(data)};
        return Run{{}, r.json("moe"), [r](const Report& report) { return train_reference(r, report); }, r.cost()};
      });
}

/// Reports the mean over the runs on each data set, the deviation of these means, and the deviation of the runs on one
/// data set (root mean square over the data sets).
inline void report(const Options& o, const Jobs& jobs, StudySummary& summary) {
  for (const Index s : reference::settings(o))
    for (const char* key : {"accuracy", "entropy"}) {
      std::vector<double> means, variances;
      for (Index data = 1; data <= o.data_sets; ++data) {
        const auto of_runs = values(jobs.of(label(s, data)), key);
        summary.add(label(s, data) + "." + key, of_runs);
        means.push_back(mean(of_runs));
        if (const auto within = deviation(of_runs)) variances.push_back(*within * *within);
      }
      const std::string name = reference::label(s, "moe", true) + ".data_sets." + key;
      summary.add(name, means);
      if (!variances.empty()) summary.add(name + ".within", {std::sqrt(mean(variances))});
    }
}

}  // namespace studies::expert_count::data_sets
