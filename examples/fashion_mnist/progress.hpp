#pragma once

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <gatefold/core/types.hpp>
#include <string>

#include "../support/terminal.hpp"

namespace fashion {

/// Shows the progress of training on stderr. On a terminal, rewrites one line again and again. Otherwise, prints about
/// five plain lines per epoch.
///
///     Progress progress(epochs, images_per_epoch);
///     progress.begin(epoch);                             // from 1
///     progress.update(images_done, loss, accuracy);      // can be called often
///     progress.clear();                                  // before printing anything else
class Progress {
 public:
  using Index = gatefold::Index;

  Progress(Index epochs, Index images) : epochs_(epochs), images_(std::max<Index>(images, 1)) {}

  void begin(Index epoch) {
    epoch_ = epoch;
    line_.restart();
    start_ = Clock::now();
  }

  /// @param done      number of images that this epoch has trained on so far
  /// @param accuracy  training accuracy, between 0 and 1
  void update(Index done, double loss, double accuracy) {
    const double share = static_cast<double>(done) / static_cast<double>(images_);
    if (!line_.due(share)) return;
    const double seconds = std::chrono::duration<double>(Clock::now() - start_).count();
    const double rate = seconds > 0 ? static_cast<double>(done) / seconds : 0;
    // The speed in images per second counts only this epoch, so that the tests between epochs do not affect it.
    const Index rest = (epochs_ - epoch_) * images_ + images_ - std::min(done, images_);
    char numbers[160];
    std::snprintf(numbers, sizeof numbers, "%3d%%  loss %.4f  acc %5.2f%%  %.0f images/s  %s left",
                  static_cast<int>(100 * std::min(done, images_) / images_), loss, 100 * accuracy, rate,
                  rate > 0 ? terminal::duration(static_cast<double>(rest) / rate).c_str() : "?");
    const int digits = static_cast<int>(std::to_string(epochs_).size());
    char title[80];
    std::snprintf(title, sizeof title, "epoch %*lld/%lld  ", digits, static_cast<long long>(epoch_),
                  static_cast<long long>(epochs_));
    line_.show(title, share, numbers);
  }

  /// Removes the line, so that other output begins on an empty line.
  void clear() { line_.clear(); }

 private:
  using Clock = std::chrono::steady_clock;

  Index epochs_, images_, epoch_ = 1;
  Clock::time_point start_ = Clock::now();
  terminal::Line line_{5};
};

}  // namespace fashion
