#pragma once

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <gatefold/core/types.hpp>
#include <string>

namespace fashion {

/// How far training is, on stderr: one line that moves on a terminal, about five plain lines per epoch elsewhere.
///
///     Progress progress(epochs, images_per_epoch);
///     progress.begin(epoch);                             // from 1
///     progress.update(images_done, loss, accuracy);      // as often as you like
///     progress.clear();                                  // before printing anything else
class Progress {
 public:
  using Index = gatefold::Index;

  Progress(Index epochs, Index images) : epochs_(epochs), images_(std::max<Index>(images, 1)) {}
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress() { clear(); }

  void begin(Index epoch) {
    epoch_ = epoch;
    lines_ = 0;
    start_ = Clock::now();
  }

  /// @param done      images of this epoch seen so far
  /// @param accuracy  between 0 and 1
  void update(Index done, double loss, double accuracy) {
    const Clock::time_point now = Clock::now();
    const bool last = done >= images_;
    if (terminal_) {
      // Ten times a second is all that eyes can follow.
      if (shown_ && !last && now - printed_ < std::chrono::milliseconds(100)) return;
    } else {
      if (done * kLines / images_ <= lines_) return;
      lines_ = done * kLines / images_;
    }
    printed_ = now;
    const double seconds = std::chrono::duration<double>(now - start_).count();
    const double rate = seconds > 0 ? static_cast<double>(done) / seconds : 0;
    // Measured within the epoch, so that the time spent on testing between epochs does not blur the rate.
    const Index rest = (epochs_ - epoch_) * images_ + images_ - std::min(done, images_);
    char numbers[160];
    std::snprintf(numbers, sizeof numbers, "%3d%%  loss %.4f  acc %5.2f%%  %.0f images/s  %s left",
                  static_cast<int>(100 * std::min(done, images_) / images_), loss, 100 * accuracy, rate,
                  rate > 0 ? duration(static_cast<double>(rest) / rate).c_str() : "?");
    const int digits = static_cast<int>(std::to_string(epochs_).size());
    char title[80];
    std::snprintf(title, sizeof title, "epoch %*lld/%lld  ", digits, static_cast<long long>(epoch_),
                  static_cast<long long>(epochs_));
    if (!terminal_) {
      std::fprintf(stderr, "%s%s\n", title, numbers);
      return;
    }
    std::string line = title;
    const std::size_t width = columns(), used = line.size() + std::char_traits<char>::length(numbers) + 3;
    // A bar of at least four, if there is room; a line that wraps could not be cleared.
    if (width >= used + 4) {
      const std::size_t bar = std::min<std::size_t>(width - used, 30);
      const std::size_t full =
          bar * static_cast<std::size_t>(std::min(done, images_)) / static_cast<std::size_t>(images_);
      line += '[' + std::string(full, '=') + std::string(bar - full, ' ') + "] ";
    }
    line += numbers;
    line.resize(std::min(line.size(), width));
    std::fprintf(stderr, "\r\x1b[K%s", line.c_str());
    std::fflush(stderr);
    shown_ = true;
  }

  /// Take the line away, so that other output begins on a fresh one.
  void clear() {
    if (!shown_) return;
    std::fputs("\r\x1b[K", stderr);
    std::fflush(stderr);
    shown_ = false;
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr Index kLines = 5;

  static std::string duration(double seconds) {
    const auto s = static_cast<long long>(std::min(seconds, 3.6e6) + 0.5);
    char text[40];
    if (s >= 3600) {
      std::snprintf(text, sizeof text, "%lld:%02lld:%02lld", s / 3600, s / 60 % 60, s % 60);
    } else {
      std::snprintf(text, sizeof text, "%lld:%02lld", s / 60, s % 60);
    }
    return text;
  }

  /// What fits on a line without touching its last column, where some terminals wrap.
  static std::size_t columns() {
    winsize size{};
    const bool known = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1;
    return known ? size.ws_col - 1u : 79u;
  }

  Index epochs_, images_, epoch_ = 1, lines_ = 0;
  Clock::time_point start_ = Clock::now(), printed_{};
  bool terminal_ = isatty(STDERR_FILENO) == 1, shown_ = false;
};

}  // namespace fashion
