#pragma once

#include <cstddef>
#include <functional>
#include <gatefold/core/error.hpp>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "../support/runs.hpp"
#include "options.hpp"

namespace studies::expert_count {

/// The runs of all studies, each computed once however many of them look at it.
class Jobs {
 public:
  explicit Jobs(const Options& options) : options_(options) {}

  /// @param make  the run of a seed; its name is filled in
  void add(const std::string& label, Index seeds, const std::function<Run(std::uint64_t seed)>& make) {
    if (!places_.emplace(label, std::pair{runs_.size(), static_cast<std::size_t>(seeds)}).second) return;
    add_seeds(runs_, label, options_.common.seed, seeds, make);
  }
  void add(const std::string& label, const Setting& setting) {
    add(label, options_.common.seeds, [setting](std::uint64_t seed) {
      Setting s = setting;
      s.seed = seed;
      return Run{{}, s.json(), [s](const Report& report) { return train(s, report); }, s.cost()};
    });
  }
  void compute() { results_ = studies::compute(options_.common, runs_); }

  /// What the seeds of a label gave.
  std::span<const Json> of(const std::string& label) const {
    const auto [first, count] = places_.at(label);
    return std::span(results_).subspan(first, count);
  }

 private:
  const Options& options_;
  std::map<std::string, std::pair<std::size_t, std::size_t>> places_;  // label → first run, how many
  std::vector<Run> runs_;
  std::vector<Json> results_;
};

}  // namespace studies::expert_count
