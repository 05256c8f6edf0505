#pragma once

#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "gatefold/distributed/mpi_transfers.hpp"

namespace gatefold::dist::mpi {

/// A thread that calls MPI while the process computes, so that the messages of an exchange advance. MPI libraries
/// transfer few bytes unless the program calls them. Between start and stop, only this thread calls MPI.
class Progress {
 public:
  explicit Progress(Transfers& transfers) : transfers_(transfers), thread_([this] { run(); }) {}
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress() {
    {
      const std::lock_guard lock(mutex_);
      ends_ = true;
    }
    changed_.notify_one();
    thread_.join();
  }

  void start() {
    {
      const std::lock_guard lock(mutex_);
      goes_ = true;
    }
    changed_.notify_one();
  }
  /// Stops calling MPI on the thread.
  /// @return the exception that was thrown on the thread, if any
  std::exception_ptr stop() noexcept {
    const std::lock_guard lock(mutex_);
    goes_ = false;
    return std::exchange(failure_, nullptr);
  }
  /// Pauses the thread. The caller can call MPI while it holds the returned lock.
  std::unique_lock<std::mutex> pause() { return std::unique_lock(mutex_); }

 private:
  static constexpr std::chrono::microseconds rest{50};  // pause between two polls of MPI

  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return goes_ || ends_; });
      if (ends_) return;
      try {
        transfers_.take();
        if (transfers_.complete()) goes_ = false;
      } catch (...) {
        failure_ = std::current_exception();
        goes_ = false;
      }
      if (goes_) changed_.wait_for(lock, rest, [&] { return !goes_ || ends_; });
    }
  }

  Transfers& transfers_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool goes_ = false, ends_ = false;
  std::exception_ptr failure_;
  std::thread thread_;  // the last member, because the thread uses the others
};

}  // namespace gatefold::dist::mpi
