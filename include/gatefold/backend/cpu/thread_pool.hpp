#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#if __has_include(<unistd.h>) && !defined(_WIN32)
#define GATEFOLD_POSIX_PROCESS 1
#include <signal.h>  // NOLINT(modernize-deprecated-headers): <csignal> need not declare POSIX signal functions
#include <unistd.h>
#endif

#include "gatefold/backend/cpu/affinity.hpp"
#include "gatefold/backend/cpu/executor.hpp"
#include "gatefold/backend/cpu/instruction_set.hpp"
#include "gatefold/backend/cpu/ticks.hpp"
#include "gatefold/core/error.hpp"

namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu {

/// Returns a positive number that identifies this process. A child of fork() gets a different number than its parent.
/// On systems without fork() the number is the same in every process.
inline long process_id() {
#ifdef GATEFOLD_POSIX_PROCESS
  return static_cast<long>(getpid());
#else
  return 1;
#endif
}

/// Blocks all signals for the thread that constructs the object, until the object is destroyed. Threads that this
/// thread starts in the meantime never receive signals, because they inherit the signal mask. Does nothing on systems
/// without POSIX signals.
class SignalsBlocked {
 public:
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;
#ifdef GATEFOLD_POSIX_PROCESS
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
#else
  SignalsBlocked() {}
  ~SignalsBlocked() {}
#endif
};

/// Returns the default number of threads of a context: the environment variable OMP_NUM_THREADS if it begins with a
/// positive number (at most 1024 threads), else the number of usable processors.
inline int available_threads() {
  const char* wish = std::getenv("OMP_NUM_THREADS");
  const long threads = wish ? std::strtol(wish, nullptr, 10) : 0;
  return threads > 0 ? static_cast<int>(std::min(threads, 1024L)) : usable_processors();
}

/// The library's own thread pool, the default executor of the CPU backend. A thread without work first spins (polls for
/// work without sleeping), then sleeps.
///
/// The threads start with the first call of pays() or run() and end with this object. The calling thread is worker 0.
/// A thread joins a call if it is awake, or wakes up before the calling thread has done its part. The call waits only
/// for the threads that joined. A thread for which the machine has no free processor therefore delays no call.
///
/// - If several threads call run(), or f calls run(), one call at a time is shared between threads. Each other call
///   runs on its calling thread.
/// - A child of fork() has none of the threads and starts its own if it needs them. If f calls fork() on the calling
///   thread while other threads are inside the call, run() throws Error in the child, because the child does not have
///   these threads.
/// - If a thread cannot be started, the executor has fewer threads. The threads receive no signals.
/// - The threads can run on the same processors as the thread that makes the first call. While they wake up, they can
///   be excluded from the caller's processor (affinity.hpp). The affinity of the caller never changes.
/// @cost  about a microsecond for a call that finds its threads spinning; a sleeping thread needs the time that the
///        system takes to wake it
class Workers {
 public:
  // The largest number of threads of a pool, because `state_` has 15 bits to count the workers inside a call.
  static constexpr int kMost = 0x7fff;
  /// Makes a thread pool. Its threads start with the first call of pays() or run().
  /// @param threads  number of threads, including the calling thread
  explicit Workers(int threads) : most_(std::clamp(threads, 1, kMost)), asleep_(most_ - 1) {}
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;
  ~Workers() { stop(); }

  void run(int count, WorkerFunction f) {
    count = std::min(count, most_);
    if (count <= 1 || busy_.exchange(true, std::memory_order_acquire)) return f(0);
    if (!joined_) start_once();
    f_ = &f;
    called_at_.store(Ticks::now(), std::memory_order_relaxed);
    state_.store(++calls_ << kCallBits | static_cast<State>(count) << kCountBits);
    if (asleep_.load() > 0) wake();
    f(0);
    const State state = state_.fetch_and(~kCount);
    joined_ = state & kJoined;
    const bool lost = (state & kInside) && !wait_for_those_inside();
    busy_.store(false, std::memory_order_release);
    if (lost)
      throw Error("Workers.run: fork() inside a parallel task: the child process does not have the worker threads");
  }

  /// Returns whether work that takes the calling thread `ns` nanoseconds is finished earlier if a second thread shares
  /// it.
  ///
  /// The decision depends on two times that are measured during calls of run(): the time in which a spinning thread
  /// joins a call, and the time in which a sleeping thread wakes up. The work must be much longer than the first time.
  /// If a thread sleeps, the time that a second thread saves (half of the work) must also be longer than the second
  /// time. Time that a second thread would have saved in earlier work is added, if that work was not shared. The reason
  /// is that threads that are woken once stay awake for the work that follows. The sum starts again at 0 after a pause
  /// in which awake threads would fall asleep.
  ///
  /// The first call starts the threads, whatever it returns. If they started when work first pays, a training step
  /// after the first could allocate memory.
  bool pays(double ns) {
    if (most_ == 1) return false;
    if (!started_.load(std::memory_order_relaxed) && !busy_.exchange(true, std::memory_order_acquire)) {
      start_once();
      busy_.store(false, std::memory_order_release);
    }
    if (ns < kTuning.shared * joining_.load(std::memory_order_relaxed)) return false;
    if (busy_.load(std::memory_order_relaxed)) return false;
    if (asleep_.load(std::memory_order_relaxed) == 0) return true;
    const bool awake_until_now =
        !crowded_.load(std::memory_order_relaxed) && Ticks::since(missed_at_.load(std::memory_order_relaxed)) <
                                                         std::chrono::duration<double, std::nano>(kTuning.idle).count();
    const double missed = ns / 2 + (awake_until_now ? missed_.load(std::memory_order_relaxed) : 0);
    const bool wakes = missed > waking_.load(std::memory_order_relaxed);
    missed_.store(wakes ? 0 : missed, std::memory_order_relaxed);
    missed_at_.store(Ticks::now(), std::memory_order_relaxed);
    return wakes;
  }

 private:
  using Clock = std::chrono::steady_clock;
  using Time = Clock::duration;

  /// How long threads wait for work by spinning (polling without sleeping), and when they share work. The numbers were
  /// measured on 2 processors, with 0, 1 and 3 other busy processes (bench/threads.cpp).
  struct Tuning {
    // How long a thread without work spins before it sleeps. Tried: with 5 µs, steps of 1 ms took 17 % longer, with 50
    // µs 9 % longer; 1 ms was no faster than this value.
    Time idle;
    // How long, at most, a caller that has done its part of the work spins while other threads are inside the call.
    // Then it sleeps. Tried: 5, 100 and 200 µs; no difference.
    Time last;
    // If a spinning thread measures more time than this between two reads of the clock, another process has used the
    // processor. The thread then sleeps, so that the other process can have the processor.
    Time preempted;
    // A thread that another process has preempted stops spinning. In the following calls it spins longer and longer;
    // after this number of calls, it spins as long as before. Tried: 64 and 1024. In one of eighteen runs with 64, and
    // in five runs with 1024, calls of 2 ms took as long as on one thread for several seconds.
    int recovery;
    // Work is shared only if it takes at least this many times as long as a spinning thread takes to join a call.
    // Joining takes about as long as two processors need to exchange a cache line, and shared work moves many cache
    // lines. Tried: 15; models of 1 and 2 sequences then took up to 1.2 times as long on two threads as on one. With
    // 70, layers of 8 items took 1.3 times as long as with 30, and layers of 4 items did not gain.
    double shared;
    // Limits and first estimates of two measured times, in nanoseconds: `joining` is the time until a spinning thread
    // joins a call, and `waking` the time until a sleeping thread is awake. Limits are needed because a thread whose
    // processor is busy can take milliseconds.
    struct Limits {
      double least, first, most;
    } joining, waking;
  };
  static constexpr Tuning kTuning{std::chrono::microseconds(200),
                                  std::chrono::microseconds(20),
                                  std::chrono::microseconds(500),
                                  16,
                                  40,
                                  {150, 150, 800},
                                  {5'000, 30'000, 100'000}};

  // The state of the current call of run(). One integer has four fields:
  // - the number of the call
  // - the number of workers that the call needs (0 after the caller has done its part)
  // - whether a worker has joined the call
  // - the number of workers that have joined the call and have not left it
  using State = std::uint64_t;
  static constexpr int kCallBits = 32, kCountBits = 16;
  static constexpr State kCount = 0xffff0000, kJoined = 0x8000, kInside = 0x7fff;

  enum class Spun { found, in_vain, preempted };
  template <class F>
  static Spun spin(Time patience, const F& found) {
    Clock::time_point now = Clock::now();
    const Clock::time_point end = now + patience;
    while (now < end) {
      for (int i = 0; i < 32; ++i) {
        if (found()) return Spun::found;
#if defined(__x86_64__) || defined(__i386__)
        __builtin_ia32_pause();
#elif defined(__aarch64__)
        asm volatile("yield");
#endif
      }
      const Clock::time_point before = std::exchange(now, Clock::now());
      if (now - before > kTuning.preempted) return Spun::preempted;
    }
    return Spun::in_vain;
  }

  void wake() {
    // idle_, the time for which threads spin, is 0 if there are more threads than processors. In this case, no thread
    // is excluded from the caller's processor.
    if (idle_ > Time(0)) {
      const int processor = current_processor();
      for (std::size_t i = 0; i < threads_->size(); ++i) sleeping_[i].keep_off(processor, (*threads_)[i]);
    }
    woken_at_.store(Ticks::now(), std::memory_order_relaxed);
    wakes_.fetch_add(1);
    wakes_.notify_all();
  }
  // Multiplies `time` by 1.015 if more than `time` nanoseconds have passed since `begin`, and divides it by 1.06
  // otherwise. `time` therefore approaches a value that about a fifth of all measurements do not exceed. This value is
  // low on purpose, because most longer measurements have causes that do not recur: another process had the processor,
  // or the caller's stores waited for memory.
  static void measure(std::atomic<double>& time, const std::atomic<std::int64_t>& begin, const Tuning::Limits& limits) {
    const double before = time.load(std::memory_order_relaxed);
    const bool longer = Ticks::since(begin.load(std::memory_order_relaxed)) > before;
    time.store(std::clamp(longer ? before * 1.015 : before / 1.06, limits.least, limits.most),
               std::memory_order_relaxed);
  }

  // Waits until no worker thread is inside the current call. Returns false in a child process of fork(), because it
  // does not have the worker threads, and the wait would never end.
  bool wait_for_those_inside() {
    const auto left = [this] { return (state_.load() & kInside) == 0; };
    if (spin(kTuning.last, left) == Spun::found) return true;
    if (process_ != process_id()) return false;
    for (;;) {
      waiting_.store(1);
      if (left()) break;
      waiting_.wait(1);
    }
    waiting_.store(0);
    return true;
  }

  void help(int worker, SleepingThread& self) {
    State seen = 0;  // number of the last call in which this thread took part
    const auto wanted = [&](State state) {
      return state >> kCallBits != seen && worker < static_cast<int>((state & kCount) >> kCountBits);
    };
    const auto anything = [&] { return wanted(state_.load()) || stop_.load(); };
    Time patience = idle_;
    bool spinning = false;
    asleep_.fetch_sub(1);
    while (!stop_.load()) {
      State state = state_.load();
      if (wanted(state)) {
        if (!state_.compare_exchange_strong(state, (state | kJoined) + 1)) continue;
        if (std::exchange(spinning, false)) measure(joining_, called_at_, kTuning.joining);
        seen = state >> kCallBits;
        (*f_)(worker);
        state = state_.fetch_sub(1) - 1;
        if ((state & (kCount | kInside)) == 0 && waiting_.load() != 0) {
          waiting_.store(0);
          waiting_.notify_one();
        }
        patience = std::min(idle_, patience + idle_ / kTuning.recovery);
      }
      const Spun spun = spin(patience, anything);
      spinning = spun == Spun::found;
      if (spinning) continue;
      if (spun == Spun::preempted) patience = Time(0);
      self.falls_asleep();
      asleep_.fetch_add(1);
      const int wakes = wakes_.load();
      if (!anything()) {
        wakes_.wait(wakes);
        measure(waking_, woken_at_, kTuning.waking);
      }
      asleep_.fetch_sub(1);
      self.is_awake();
    }
  }

  // Starts the threads unless this process has started them.
  void start_once() {
    if (process_ == process_id()) return;
    forget();
    process_ = process_id();
    started_ = true;
    stop_ = false;
    state_ = calls_ = 0;
    asleep_ = most_ - 1;
    waiting_ = 0;
    const bool crowded = most_ > usable_processors();
    crowded_ = crowded;
    idle_ = crowded ? Time(0) : kTuning.idle;
    const SignalsBlocked blocked;
    try {
      sleeping_ = std::make_unique<SleepingThread[]>(static_cast<std::size_t>(most_ - 1));
      threads_ = std::make_unique<std::vector<std::thread>>();
      threads_->reserve(static_cast<std::size_t>(most_ - 1));
      for (int worker = 1; worker < most_; ++worker)
        threads_->emplace_back(
            [this, worker, &self = sleeping_[static_cast<std::size_t>(worker - 1)]] { help(worker, self); });
    } catch (const std::exception&) {
      // If a thread cannot be started, the pool has fewer threads.
      asleep_.fetch_sub(most_ - 1 - static_cast<int>(threads_ ? threads_->size() : 0));
    }
  }
  void stop() {
    if (!threads_) return;
    if (process_ != process_id()) return forget();
    stop_ = true;
    wake();
    for (std::thread& thread : *threads_) thread.join();
  }
  // Leaks the std::thread objects. After fork(), the child process can neither join nor detach the threads of its
  // parent.
  void forget() { static_cast<void>(threads_.release()); }

  const int most_;
  long process_ = 0;     // ID of the process in which the threads were started
  Time idle_{};          // how long a thread without work spins before it sleeps
  bool joined_ = false;  // whether a pool thread took part in the last call
  State calls_ = 0;
  std::unique_ptr<std::vector<std::thread>> threads_;
  std::unique_ptr<SleepingThread[]> sleeping_;  // for each thread, on which processor it sleeps (affinity.hpp)
  const WorkerFunction* f_ = nullptr;
  std::atomic<bool> busy_{false}, stop_{false}, started_{false};
  alignas(64) std::atomic<State> state_{0};
  std::atomic<std::int64_t> called_at_{0};  // when the current call of run() began (Ticks)
  // asleep_: number of threads that sleep or have not been started; wakes_: number of times that sleeping threads were
  // woken; waiting_: 1 if the caller is asleep
  alignas(64) std::atomic<int> asleep_, wakes_{0}, waiting_{0};
  // Whether there are more threads than processors. Threads then sleep as soon as they have no work.
  std::atomic<bool> crowded_{false};
  // joining_: usual nanoseconds from the beginning of a call until a spinning thread joins it. waking_: usual
  // nanoseconds from a call of wake() until a thread is awake. missed_: nanoseconds that a second thread would have
  // saved in recent work that was not shared. missed_at_ (Ticks): when missed_ was last changed.
  std::atomic<double> joining_{kTuning.joining.first}, waking_{kTuning.waking.first}, missed_{0};
  std::atomic<std::int64_t> woken_at_{0}, missed_at_{0};
};

}  // namespace gatefold::inline GATEFOLD_CPU_NAMESPACE::cpu

#undef GATEFOLD_POSIX_PROCESS
