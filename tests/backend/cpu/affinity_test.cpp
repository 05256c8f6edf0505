#include "gatefold/backend/cpu/affinity.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <future>
#include <thread>
#include <vector>

#include "gatefold/backend/cpu/thread_pool.hpp"

using namespace gatefold;
using cpu::SleepingThread;

#if defined(__linux__)
namespace {

using Processors = std::vector<int>;

/// The processors that a thread may run on.
Processors allowed(pthread_t thread = pthread_self()) {
  cpu_set_t set;
  REQUIRE(pthread_getaffinity_np(thread, sizeof set, &set) == 0);
  Processors all;
  for (int p = 0; p < CPU_SETSIZE; ++p)
    if (CPU_ISSET(p, &set)) all.push_back(p);
  return all;
}
void allow(const Processors& processors) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int p : processors) CPU_SET(p, &set);
  REQUIRE(sched_setaffinity(0, sizeof set, &set) == 0);
}
Processors without(Processors all, int processor) {
  std::erase(all, processor);
  return all;
}

/// A thread that falls asleep and wakes twice. Between these steps a test looks at it. It falls asleep while it may run
/// on one processor only, so that this processor is known.
class Sleeper {
 public:
  explicit Sleeper(const Processors& processors)
      : thread_([this, processors] {
          for (int time = 0; time < 2; ++time) {
            allow({processors.back()});
            self_.falls_asleep();
            slept_on_[time].set_value(cpu::current_processor());
            allow(processors);
            sleeps_[time].set_value();
            go_[time].get_future().wait();
            self_.is_awake();
            awake_[time].set_value(allowed());
          }
        }) {}
  /// Wakes the thread, also if a check failed before the test woke it.
  ~Sleeper() {
    for (auto& go : go_) try {
        go.set_value();
      } catch (const std::future_error&) {  // the test woke it
      }
    thread_.join();
  }

  int slept_on(int time) {
    sleeps_[time].get_future().wait();
    return slept_on_[time].get_future().get();
  }
  void keep_off(int processor) { self_.keep_off(processor, thread_); }
  Processors may_use() { return allowed(thread_.native_handle()); }
  /// Wakes the thread and returns the processors that it may then use.
  Processors wake(int time) {
    go_[time].set_value();
    return awake_[time].get_future().get();
  }

 private:
  SleepingThread self_;
  std::promise<int> slept_on_[2];
  std::promise<void> sleeps_[2], go_[2];
  std::promise<Processors> awake_[2];
  std::thread thread_;
};

}  // namespace

TEST_CASE("affinity: a sleeping thread avoids its processor until it wakes") {
  const Processors all = allowed();
  if (all.size() < 2) return;
  Sleeper sleeper(all);
  const int there = sleeper.slept_on(0);
  for (const int other : without(all, there)) sleeper.keep_off(other);
  CHECK(sleeper.may_use() == all);
  sleeper.keep_off(there);
  CHECK(sleeper.may_use() == without(all, there));
  sleeper.keep_off(there);  // woken twice before it runs
  CHECK(sleeper.may_use() == without(all, there));
  CHECK(sleeper.wake(0) == all);
  sleeper.slept_on(1);
  CHECK(sleeper.may_use() == all);
  CHECK(sleeper.wake(1) == all);
}

TEST_CASE("affinity: a thread with one processor keeps it") {
  const Processors one{allowed()[0]};
  Sleeper sleeper(one);
  CHECK(sleeper.slept_on(0) == one[0]);
  sleeper.keep_off(one[0]);
  CHECK(sleeper.may_use() == one);
  CHECK(sleeper.wake(0) == one);
  sleeper.slept_on(1);
  sleeper.keep_off(one[0]);
  CHECK(sleeper.wake(1) == one);
}

TEST_CASE("affinity: workers keep all processors if their caller moves") {
  const Processors all = allowed();
  const int threads = static_cast<int>(std::min<std::size_t>(all.size(), 8));  // if threads > processors, none spins
  cpu::Workers workers(threads);
  std::vector<Processors> seen(static_cast<std::size_t>(threads));
  const auto look = [&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // until the workers sleep
    std::atomic<int> here{0};
    const auto f = [&](int worker) {
      seen[static_cast<std::size_t>(worker)] = allowed();
      ++here;
      const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(2);
      while (here < threads && std::chrono::steady_clock::now() < end) std::this_thread::yield();
    };
    workers.run(threads, f);
  };
  look();  // starts the workers
  for (std::size_t i = 0; i < 60; ++i) {
    allow({all[i % all.size()]});
    look();
  }
  allow(all);
  // A worker that was woken while it fell asleep gets its processors back at the next call.
  const std::vector<Processors> everywhere(seen.size(), all);
  for (int i = 0; i < 1000 && seen != everywhere; ++i) look();
  CHECK(seen == everywhere);
}

TEST_CASE("usable_processors: counts processors of the calling thread") {
  CHECK(cpu::usable_processors() == static_cast<int>(allowed().size()));
  int bound = 0, here = -1;
  const int last = allowed().back();
  std::thread([&] {
    allow({last});
    bound = cpu::usable_processors();
    here = cpu::current_processor();
  }).join();
  CHECK(bound == 1);
  CHECK(here == last);
}
#endif
