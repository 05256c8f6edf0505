#pragma once

#include <chrono>
#include <cstdio>
#include <string>

#include "../support/terminal.hpp"
#include "options.hpp"

namespace images {

/// How far training is, on stderr, on a terminal.
class Progress {
 public:
  Progress(const Options& o, Index begun) : o_(o), begun_(begun) {}

  void show(Index step, double loss) {
    const double share = static_cast<double>(step) / static_cast<double>(o_.steps);
    if (!line_.due(share)) return;
    const double rate = static_cast<double>(step - begun_) / seconds();
    char numbers[120];
    std::snprintf(numbers, sizeof numbers, "loss %.4f  %.0f images/s  %s left", loss,
                  rate * static_cast<double>(o_.batch),
                  terminal::duration(static_cast<double>(o_.steps - step) / rate).c_str());
    line_.show("step " + std::to_string(step) + "/" + std::to_string(o_.steps) + "  ", share, numbers);
  }
  void clear() { line_.clear(); }
  double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

 private:
  using Clock = std::chrono::steady_clock;
  const Options& o_;
  Index begun_;
  Clock::time_point start_ = Clock::now();
  terminal::Line line_{0};
};

}  // namespace images
