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

/// Queries and changes the set of processors on which a thread can run.
namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu {

/// Returns the number of processors on which the calling thread can run.
inline int usable_processors() {
#ifdef GATEFOLD_AFFINITY
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
#endif
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

/// Returns the processor on which the calling thread runs, or -1 if the system does not report it.
inline int current_processor() {
#ifdef GATEFOLD_AFFINITY
  return sched_getcpu();
#else
  return -1;
#endif
}

/// Remembers the processor on which a thread went to sleep. If the thread that wakes it (the waking thread) runs on the
/// same processor, that processor is removed from the sleeping thread's affinity mask until the sleeping thread is
/// awake.
///
/// Linux wakes a thread on the processor on which it slept, unless it finds an idle processor. A virtual processor that
/// its host has put to sleep does not look idle. Without this class, the woken thread can therefore wait for the waking
/// thread until Linux balances the loads, up to ten milliseconds. This happened when the waking thread had moved to
/// that processor in the meantime, or when two pools took turns: calls of 1.2 ms on two threads took 2.4 ms (2 virtual
/// processors of a Zen 5, Linux 6.18).
class SleepingThread {
 public:
  /// Records the current processor. The thread to which this object belongs calls this just before it sleeps.
  void falls_asleep() {
    give_back();
    processor_ = current_processor();
  }
  /// Clears the record and restores the affinity mask. The thread to which this object belongs calls this when it is
  /// awake.
  void is_awake() {
    processor_ = kNone;
    give_back();
  }
  /// Removes `processor` from the affinity mask of `thread` if `thread` went to sleep on it. The waking thread, which
  /// runs on `processor`, calls this before it wakes `thread`.
  void keep_off([[maybe_unused]] int processor, [[maybe_unused]] std::thread& thread) {
#ifdef GATEFOLD_AFFINITY
    if (processor_.load() != processor || processor == kNone) return;
    cpu_set_t set;
    const auto handle = thread.native_handle();
    if (pthread_getaffinity_np(handle, sizeof set, &set) != 0 || !CPU_ISSET(static_cast<std::size_t>(processor), &set))
      return;
    CPU_CLR(static_cast<std::size_t>(processor), &set);
    // This is safe even if `thread` has just woken up, because it restores its affinity mask before it sleeps again.
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

  // processor_: the processor on which the thread sleeps. taken_: the processor that was removed from its affinity
  // mask.
  std::atomic<int> processor_{kNone}, taken_{kNone};
};

}  // namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu

#undef GATEFOLD_AFFINITY
