#pragma once

#include <chrono>
#include <cstdio>
#include <gatefold/core/types.hpp>
#include <string>

#include "../support/terminal.hpp"

namespace training {

using gatefold::Index;

/// The items that a training step reads, for example tokens or images: their name, and their number per step.
struct Items {
  const char* name;
  Index per_step;
};

/// Shows the progress of training on stderr, if stderr is a terminal.
class Progress {
 public:
  Progress(Items items, Index begun, Index steps) : items_(items), begun_(begun), steps_(steps) {}

  void show(Index step, double loss) {
    const double share = static_cast<double>(step) / static_cast<double>(steps_);
    if (!line_.due(share)) return;
    char numbers[120];
    std::snprintf(numbers, sizeof numbers, "loss %.4f  %.0f %s/s  %s left", loss, rate(step), items_.name,
                  terminal::duration(static_cast<double>((steps_ - step) * items_.per_step) / rate(step)).c_str());
    line_.show("step " + std::to_string(step) + "/" + std::to_string(steps_) + "  ", share, numbers);
  }
  void clear() { line_.clear(); }
  /// Returns the seconds since this object was made, which is just before the first step of this program.
  double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }
  /// Returns the number of items per second that this program has trained on.
  double rate(Index step) const { return static_cast<double>((step - begun_) * items_.per_step) / seconds(); }

 private:
  using Clock = std::chrono::steady_clock;
  Items items_;
  Index begun_, steps_;
  Clock::time_point start_ = Clock::now();
  terminal::Line line_{0};
};

}  // namespace training
