#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <gatefold/core/error.hpp>
#include <iterator>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "../support/runs.hpp"
#include "options.hpp"

namespace studies::expert_count {

/// The runs of all studies of this program. A run that several studies use is computed only once.
class Jobs {
 public:
  explicit Jobs(const Options& options) : options_(options) {}

  /// Adds one run per seed under a label.
  /// @param make  make(seed) returns the run of a seed; add() sets the name of the run
  /// @throws ArgumentError if the label already has runs, with different options
  void add(const std::string& label, Index seeds, const std::function<Run(std::uint64_t seed)>& make) {
    std::vector<Run> runs;
    add_seeds(runs, label, options_.common.seed, seeds, make);
    const auto [place, added] = places_.emplace(label, std::pair{runs_.size(), runs.size()});
    if (added) {
      std::move(runs.begin(), runs.end(), std::back_inserter(runs_));
      return;
    }
    const auto [first, count] = place->second;
    const bool same = std::equal(runs.begin(), runs.end(), runs_.begin() + static_cast<std::ptrdiff_t>(first),
                                 runs_.begin() + static_cast<std::ptrdiff_t>(first + count),
                                 [](const Run& a, const Run& b) { return a.options == b.options; });
    gatefold::expect(same, "Jobs.add", "label", "a label that no run with other options has", label);
  }
  void add(const std::string& label, const Setting& setting) {
    add(label, options_.common.seeds, [setting](std::uint64_t seed) {
      Setting s = setting;
      s.seed = seed;
      return Run{{}, s.json(), [s](const Report& report) { return train(s, report); }, s.cost()};
    });
  }
  void compute() { results_ = studies::compute(options_.common, runs_); }

  bool have(const char* option, const Json& value) const {
    return std::any_of(runs_.begin(), runs_.end(),
                       [&](const Run& run) { return run.options.contains(option) && run.options[option] == value; });
  }

  /// Returns the results of the runs with this label, one per seed.
  std::span<const Json> of(const std::string& label) const {
    const auto [first, count] = places_.at(label);
    return std::span(results_).subspan(first, count);
  }

 private:
  const Options& options_;
  std::map<std::string, std::pair<std::size_t, std::size_t>> places_;  // label → index of its first run, number of runs
  std::vector<Run> runs_;
  std::vector<Json> results_;
};

}  // namespace studies::expert_count
