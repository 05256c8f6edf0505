#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <thread>

#if defined(__linux__) && !defined(__ANDROID__)
#define GATEFOLD_AFFINITY 1
#include <pthread.h>
#include <sched.h>
#endif

#include "gatefold/backend/cpu/instruction_set.hpp"

/// The processors that threads run on.
namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu {

/// Processors that the calling thread may run on.
inline int usable_processors() {
#ifdef GATEFOLD_AFFINITY
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
#endif
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

/// The processor that the calling thread runs on; -1 where the system does not tell.
inline int current_processor() {
#ifdef GATEFOLD_AFFINITY
  return sched_getcpu();
#else
  return -1;
#endif
}

/// Where a thread sleeps, so that who wakes it from the same processor keeps it off that one until it is awake.
///
/// Linux wakes a thread where it slept unless it sees an idle processor, and a virtual one that its host has put to
/// sleep is not idle to it: the thread waits behind its waker until loads are balanced, up to ten milliseconds. So it
/// was where the waker had moved meanwhile, or two pools took turns: calls of 1.2 ms on two threads took 2.4 (2 virtual
/// processors of a Zen 5, Linux 6.18).
class SleepingThread {
 public:
  /// By the thread itself, before it sleeps.
  void falls_asleep() {
    give_back();
    processor_ = current_processor();
  }
  /// By the thread itself, when it is awake.
  void is_awake() {
    processor_ = kNone;
    give_back();
  }
  /// By who wakes `thread` from a processor.
  void keep_off([[maybe_unused]] int processor, [[maybe_unused]] std::thread& thread) {
#ifdef GATEFOLD_AFFINITY
    if (processor_.load() != processor || processor == kNone) return;
    cpu_set_t set;
    const auto handle = thread.native_handle();
    if (pthread_getaffinity_np(handle, sizeof set, &set) != 0 || !CPU_ISSET(static_cast<std::size_t>(processor), &set))
      return;
    CPU_CLR(static_cast<std::size_t>(processor), &set);
    // A thread that woke meanwhile gives the processor back when it sleeps next.
    if (CPU_COUNT(&set) > 0 && pthread_setaffinity_np(handle, sizeof set, &set) == 0) taken_ = processor;
#endif
  }

 private:
  static constexpr int kNone = -1;

  void give_back() {
    [[maybe_unused]] const int processor = taken_.exchange(kNone);
#ifdef GATEFOLD_AFFINITY
    cpu_set_t set;
    if (processor == kNone || sched_getaffinity(0, sizeof set, &set) != 0) return;
    CPU_SET(static_cast<std::size_t>(processor), &set);
    sched_setaffinity(0, sizeof set, &set);
#endif
  }

  std::atomic<int> processor_{kNone}, taken_{kNone};  // where it sleeps; what it may not run on for now
};

}  // namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu

#undef GATEFOLD_AFFINITY
