#pragma once

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <string>

/// Progress of a program on stderr.
namespace terminal {

/// Formats a duration, for example `1:05` or `2:01:05`.
inline std::string duration(double seconds) {
  const auto s = static_cast<long long>(std::min(seconds, 3.6e6) + 0.5);
  char text[40];
  if (s >= 3600) {
    std::snprintf(text, sizeof text, "%lld:%02lld:%02lld", s / 3600, s / 60 % 60, s % 60);
  } else {
    std::snprintf(text, sizeof text, "%lld:%02lld", s / 60, s % 60);
  }
  return text;
}

/// Shows progress on stderr. If stderr is a terminal, overwrites one line, which has a bar. Otherwise, prints a few
/// plain lines.
///
///     Line line(5);                                      // 5: number of plain lines from share 0 to 1
///     if (line.due(share)) line.show("epoch 1  ", share, "loss 0.3");
///     line.clear();                                      // before printing anything else
class Line {
 public:
  explicit Line(int plain_lines) : plain_lines_(plain_lines) {}
  Line(const Line&) = delete;
  Line& operator=(const Line&) = delete;
  ~Line() { clear(); }

  /// Returns true if it is time to show the progress line again. Make the text for show() only if due() returns true.
  bool due(double share) {
    const Clock::time_point now = Clock::now();
    if (terminal_) {
      // The line is shown at most ten times a second.
      if (shown_ && share < 1 && now - printed_ < std::chrono::milliseconds(100)) return false;
    } else {
      if (static_cast<int>(share * plain_lines_) <= lines_) return false;
      lines_ = static_cast<int>(share * plain_lines_);
    }
    printed_ = now;
    return true;
  }

  void show(const std::string& title, double share, const std::string& numbers) {
    if (!terminal_) {
      std::fprintf(stderr, "%s%s\n", title.c_str(), numbers.c_str());
      return;
    }
    std::string line = title;
    const std::size_t width = columns(), used = line.size() + numbers.size() + 3;
    // The bar has at least four characters, or is left out if there is no room, because a line that wraps could not be
    // cleared.
    if (width >= used + 4) {
      const std::size_t bar = std::min<std::size_t>(width - used, 30);
      const auto full = static_cast<std::size_t>(static_cast<double>(bar) * std::clamp(share, 0.0, 1.0));
      line += '[' + std::string(full, '=') + std::string(bar - full, ' ') + "] ";
    }
    line += numbers;
    line.resize(std::min(line.size(), width));
    std::fprintf(stderr, "\r\x1b[K%s", line.c_str());
    std::fflush(stderr);
    shown_ = true;
  }

  /// Removes the line, so that other output begins on an empty line.
  void clear() {
    if (!shown_) return;
    std::fputs("\r\x1b[K", stderr);
    std::fflush(stderr);
    shown_ = false;
  }

  /// Begins again at share 0.
  void restart() { lines_ = 0; }

 private:
  using Clock = std::chrono::steady_clock;

  /// Returns the number of characters that fit on a line. The last column stays free, because some terminals wrap
  /// there.
  static std::size_t columns() {
    winsize size{};
    const bool known = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1;
    return known ? size.ws_col - 1u : 79u;
  }

  int plain_lines_, lines_ = 0;
  Clock::time_point printed_{};
  bool terminal_ = isatty(STDERR_FILENO) == 1, shown_ = false;
};

}  // namespace terminal
