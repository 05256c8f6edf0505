#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

/// Measures times so that they can be compared on a machine whose clock changes. Functions are timed in turn, round
/// after round. Ratios are taken within a round, and benchmarks report the median over the rounds.
namespace bench {

/// Returns the seconds since a fixed point in time.
inline double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Returns true if the environment variable GATEFOLD_BENCH_QUICK is set. Each benchmark then has 3 rounds.
inline bool quick() { return std::getenv("GATEFOLD_BENCH_QUICK") != nullptr; }

inline double median(std::vector<double> values) {
  if (values.empty()) return std::nan("");
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 ? values[half] : (values[half - 1] + values[half]) / 2;
}

/// Functions that are timed in turn, round after round. An entry is a function and its samples in seconds.
class Rounds {
 public:
  /// Adds an entry that times f, and returns its index. One sample calls f for about `least` seconds. If a call is
  /// short, an untimed call precedes each sample, because threads sleep and caches hold data of the previous entry.
  /// @param rest  seconds to wait before a sample, so that threads of other pools fall asleep
  std::size_t time(std::function<void()> f, double rest = 0, double least = 2e-3) {
    f();
    const double begin = now();
    f();
    const double once = std::max(now() - begin, 1e-9);
    const int calls = static_cast<int>(std::clamp(std::ceil(least / once), 1.0, 1e6));
    return measure([f = std::move(f), rest, calls, once] {
      if (rest > 0) sleep(rest);
      if (once < 0.1) f();
      const double start = now();
      for (int i = 0; i < calls; ++i) f();
      return (now() - start) / calls;
    });
  }
  /// Adds an entry whose function measures and returns its own sample, for example a time in seconds.
  std::size_t measure(std::function<double()> sample) {
    entries_.push_back({std::move(sample), {}});
    return entries_.size() - 1;
  }

  /// Samples all entries in turn, for at least 3 rounds. Stops at the largest number of rounds or at the time limit.
  void run() {
    const double begin = now(), limit = quick() ? 2 : 6;
    const std::size_t least = 3, most = quick() ? 3 : 9;
    for (std::size_t r = 0; r < least || (r < most && now() - begin < limit); ++r) {
      sleep(0.04);  // lets threads of the previously timed library stop spinning
      for (Entry& e : entries_) e.samples.push_back(e.sample());
    }
  }

  double median_of(std::size_t entry) const { return median(entries_[entry].samples); }
  /// Calls f once per round, and returns the results. The argument of f returns the time of an entry in that round:
  /// f([](std::size_t entry) { … }).
  template <class F>
  std::vector<double> over(F&& f) const {
    std::vector<double> values;
    for (std::size_t r = 0; r < entries_[0].samples.size(); ++r)
      values.push_back(f([&](std::size_t entry) { return entries_[entry].samples[r]; }));
    return values;
  }
  template <class F>
  double median_over(F&& f) const {
    return median(over(f));
  }
  /// Returns the time of entry a divided by the time of entry b: the median over the rounds.
  double ratio(std::size_t a, std::size_t b) const {
    return median_over([&](auto of) { return of(a) / of(b); });
  }

 private:
  static void sleep(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

  struct Entry {
    std::function<double()> sample;
    std::vector<double> samples;
  };
  std::vector<Entry> entries_;
};

}  // namespace bench
