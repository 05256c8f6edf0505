#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <mutex>
#include <numeric>
#include <string>
#include <vector>

#include "../../support/terminal.hpp"

namespace studies {

/// One progress line for many runs at once. The line shows the remaining time and the share of the work that is done,
/// weighted by the costs of the runs. All members of this class can be called from any thread.
class Bar {
 public:
  explicit Bar(std::vector<double> costs)
      : costs_(std::move(costs)), shares_(costs_.size()), total_(std::accumulate(costs_.begin(), costs_.end(), 0.0)) {}

  /// @param run    number of the run, an index of `costs`
  /// @param share  share of this run that is done, between 0 and 1
  void update(std::size_t run, double share) {
    const std::lock_guard lock(mutex_);
    shares_[run] = std::clamp(share, 0.0, 1.0);
    show();
  }
  void finish(std::size_t run) {
    const std::lock_guard lock(mutex_);
    shares_[run] = 1;
    ++done_;
    show();
  }

 private:
  void show() {
    const double done = std::inner_product(costs_.begin(), costs_.end(), shares_.begin(), 0.0) / total_;
    if (!line_.due(done)) return;
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
    const std::string left = done > 0 ? terminal::duration(seconds * (1 - done) / done) : "?";
    char numbers[80];
    std::snprintf(numbers, sizeof numbers, "%3d%%  %s left", static_cast<int>(100 * done), left.c_str());
    line_.show("runs " + std::to_string(done_) + "/" + std::to_string(costs_.size()) + "  ", done, numbers);
  }

  std::vector<double> costs_, shares_;
  double total_;
  std::size_t done_ = 0;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  terminal::Line line_{20};
  std::mutex mutex_{};
};

}  // namespace studies
