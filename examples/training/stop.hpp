#pragma once

#include <atomic>
#include <csignal>

namespace training {

/// Handles Ctrl-C (SIGINT) and SIGTERM while an object of this class exists. The first signal is only recorded, so that
/// the program can save its state and end. The second signal ends the program at once.
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
  /// If a signal was received, ends the program with this signal, so that a shell can report the reason.
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
  inline static std::atomic<int> alive_ = 0;  // number of Stop objects; several threads can have one
};

}  // namespace training
