#pragma once

#include <atomic>
#include <csignal>

namespace training {

/// Ctrl-C (SIGINT) and SIGTERM, while one of these lives: the first is noted, a second one ends the program.
class Stop {
 public:
  Stop() {
    if (alive_++ > 0) return;
    signal_ = 0;
    for (const int s : {SIGINT, SIGTERM}) std::signal(s, note);
  }
  Stop(const Stop&) = delete;
  Stop& operator=(const Stop&) = delete;
  ~Stop() {
    if (--alive_ > 0) return;
    for (const int s : {SIGINT, SIGTERM}) std::signal(s, SIG_DFL);
  }

  bool asked() const { return signal_ != 0; }
  /// End as who does not know the signal, so that a shell sees why.
  static void leave() {
    const int s = signal_;
    if (s == 0) return;
    std::signal(s, SIG_DFL);
    std::raise(s);
  }

 private:
  static void note(int s) {
    signal_ = s;
    std::signal(s, SIG_DFL);
  }
  inline static volatile std::sig_atomic_t signal_ = 0;
  inline static std::atomic<int> alive_ = 0;  // of several threads
};

}  // namespace training
