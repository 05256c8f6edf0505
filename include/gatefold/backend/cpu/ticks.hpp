#pragma once

#include <chrono>
#include <cstdint>
#include <limits>

#include "gatefold/backend/cpu/instruction_set.hpp"

namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu {

/// A clock for short times: the time stamp counter on x86, elsewhere std::chrono::steady_clock. Reading the counter
/// took 10 ns, reading steady_clock 25 ns (Zen 4). The difference matters, because a parallel loop with little work can
/// take as little time as one reading.
class Ticks {
 public:
  static std::int64_t now() {
#if defined(__x86_64__) || defined(__i386__)
    return static_cast<std::int64_t>(__builtin_ia32_rdtsc());
#else
    return nanoseconds();
#endif
  }
  /// Returns the nanoseconds that passed since `begin`, an earlier result of now(). Returns 0 if the counter of this
  /// processor is behind the counter of the processor that read `begin`.
  static double since(std::int64_t begin) {
    const std::int64_t passed = now() - begin;
    return passed > 0 ? static_cast<double>(passed) * length() : 0;
  }

 private:
  static std::int64_t nanoseconds() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }
  /// Returns the nanoseconds of a tick. The first call measures it, which takes 20 µs.
  static double length() {
    static const double measured = measure();
    return measured;
  }
  static double measure() {
    const Instant begin = instant();
    while (nanoseconds() < begin.nanoseconds + 20'000) {
    }
    const Instant end = instant();
    return end.ticks > begin.ticks
               ? static_cast<double>(end.nanoseconds - begin.nanoseconds) / static_cast<double>(end.ticks - begin.ticks)
               : 1;
  }
  struct Instant {
    std::int64_t ticks, nanoseconds;
  };
  /// Reads both clocks, several times. Returns the fastest of the readings, because an interrupt between the two clocks
  /// would make the others wrong by microseconds.
  static Instant instant() {
    Instant best{};
    std::int64_t fastest = std::numeric_limits<std::int64_t>::max();
    for (int i = 0; i < 5; ++i) {
      const std::int64_t before = now(), time = nanoseconds(), taken = now() - before;
      if (taken >= fastest) continue;
      fastest = taken;
      best = {before + taken / 2, time};
    }
    return best;
  }
};

}  // namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu
