#pragma once

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <string>

/// How far a program is, on stderr.
namespace terminal {

/// `1:05`, `2:01:05`.
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

/// One line with a bar that moves on a terminal, a few plain lines elsewhere.
///
///     Line line(5);                                      // plain lines from share 0 to 1
///     if (line.due(share)) line.show("epoch 1  ", share, "loss 0.3");
///     line.clear();                                      // before printing anything else
class Line {
 public:
  explicit Line(int plain_lines) : plain_lines_(plain_lines) {}
  Line(const Line&) = delete;
  Line& operator=(const Line&) = delete;
  ~Line() { clear(); }

  /// Whether there is something new to show, so that the text of a line is made only then.
  bool due(double share) {
    const Clock::time_point now = Clock::now();
    if (terminal_) {
      // Ten times a second is all that eyes can follow.
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
    // A bar of at least four, if there is room; a line that wraps could not be cleared.
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

  /// Take the line away, so that other output begins on a fresh one.
  void clear() {
    if (!shown_) return;
    std::fputs("\r\x1b[K", stderr);
    std::fflush(stderr);
    shown_ = false;
  }

  /// From share 0 again.
  void restart() { lines_ = 0; }

 private:
  using Clock = std::chrono::steady_clock;

  /// What fits on a line without touching its last column, where some terminals wrap.
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
