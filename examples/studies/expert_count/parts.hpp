#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "reference.hpp"

/// Finds which random numbers determine the result of a run: those of the data, the initial weights or the noise. Draws
/// each of these three in turn from a different seed, and compares the result with the unchanged run. Uses the linear
/// mixture.
namespace studies::expert_count::parts {

inline constexpr std::array kParts{"data", "start", "noise"};
inline constexpr std::uint64_t kOther = 1000;  // added to the seed of the data, weights or noise

inline std::string label(Index setting, const std::string& part) {
  return reference::label(setting, "moe", true) + ".other_" + part;
}
inline ReferenceRun changed(ReferenceRun r, const std::string& part) {
  (part == "data" ? r.data : part == "start" ? r.start : r.noise) = r.seed + kOther;
  return r;
}

inline void add(const Options& o, Jobs& jobs) {
  for (const Index s : reference::settings(o)) {
    const auto runs = [&](const std::string& label, const auto& change) {
      jobs.add(label, o.reference_seeds, [&o, s, change](std::uint64_t seed) {
        const ReferenceRun r = change({s, true, o.base.train, o.base.test, o.base.iterations, seed});
        return Run{{}, r.json("moe"), [r](const Report& report) { return train_reference(r, report); }, r.cost()};
      });
    };
    runs(reference::label(s, "moe", true), [](const ReferenceRun& r) { return r; });
    for (const char* part : kParts) runs(label(s, part), [part](const ReferenceRun& r) { return changed(r, part); });
  }
}

/// Reports the results of the runs in which one part has a different seed, and their difference from the unchanged
/// runs.
inline void report(const Options& o, const Jobs& jobs, StudySummary& summary) {
  for (const Index s : reference::settings(o))
    for (const char* key : {"accuracy", "entropy"}) {
      const std::string unchanged = reference::label(s, "moe", true);
      const std::vector<double> before = values(jobs.of(unchanged), key);
      summary.add("parts." + unchanged + "." + key, before);
      for (const char* part : kParts) {
        const std::vector<double> after = values(jobs.of(label(s, part)), key);
        summary.add(label(s, part) + "." + key, after);
        std::vector<double> more;
        for (std::size_t i = 0; i < after.size(); ++i) more.push_back(after[i] - before[i]);
        summary.add(label(s, part) + "." + key + ".more", more);
      }
    }
}

}  // namespace studies::expert_count::parts
