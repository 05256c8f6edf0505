#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>
#include <exception>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "gatefold/core/error.hpp"
#include "gatefold/distributed/processes.hpp"

namespace gatefold::support {

/// A world for tests whose processes are threads of this process. The sender copies a message to a queue, and does not
/// wait for the receiver.
class Processes {
 public:
  explicit Processes(int size) : queues_(static_cast<std::size_t>(size * size)) {}

  struct World {
    Processes* all;
    int of;
    std::span<const dist::Incoming> awaited{};
    int rank() const { return of; }
    int size() const { return all->size(); }
    void exchange(std::span<const dist::Outgoing> outgoing, std::span<const dist::Incoming> incoming) {
      begin(outgoing, incoming);
      finish();
    }
    void begin(std::span<const dist::Outgoing> outgoing, std::span<const dist::Incoming> incoming) {
      for (const auto& m : outgoing) all->put(of, m);
      awaited = incoming;
    }
    void finish() {
      for (const auto& m : awaited) all->take(of, m);
    }
    void fail(const std::string& sentence) noexcept { all->fail(of, sentence); }
    void listen() { all->listen(); }
  };
  /// Calls f(world) for every process, each in a thread. Throws the exception of the lowest rank that threw.
  template <class F>
  void run(const F& f) {
    std::vector<std::exception_ptr> failures(static_cast<std::size_t>(size()));
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < size(); ++rank)
      ranks.emplace_back([&, rank] {
        World world{this, rank};
        try {
          f(world);
        } catch (...) {
          failures[static_cast<std::size_t>(rank)] = std::current_exception();
        }
      });
    for (std::thread& rank : ranks) rank.join();
    for (const auto& failure : failures)
      if (failure) std::rethrow_exception(failure);
  }
  int size() const {
    int n = 0;
    while (static_cast<std::size_t>(n * n) < queues_.size()) ++n;
    return n;
  }

 private:
  std::deque<std::vector<std::byte>>& queue(int from, int to) {
    return queues_[static_cast<std::size_t>(from * size() + to)];
  }
  void fail(int rank, const std::string& sentence) {
    const std::lock_guard lock(mutex_);
    if (failure_.empty()) failure_ = "rank " + std::to_string(rank) + ": " + sentence;
  }
  void listen() {
    const std::lock_guard lock(mutex_);
    if (!failure_.empty()) throw DeviceError(failure_);
  }
  void put(int from, const dist::Outgoing& m) {
    const std::lock_guard lock(mutex_);
    queue(from, m.rank).emplace_back(m.data, m.data + m.bytes);
  }
  void take(int to, const dist::Incoming& m) {
    for (;;) {
      {
        const std::lock_guard lock(mutex_);
        auto& waiting = queue(m.rank, to);
        if (!waiting.empty()) {
          if (waiting.front().size() != m.bytes) throw DeviceError("another size");
          std::copy(waiting.front().begin(), waiting.front().end(), m.data);
          waiting.pop_front();
          return;
        }
        if (!failure_.empty()) throw DeviceError(failure_);
      }
      std::this_thread::yield();
    }
  }

  std::mutex mutex_;
  std::string failure_;
  std::vector<std::deque<std::vector<std::byte>>> queues_;
};
static_assert(dist::StartingWorld<Processes::World>);

}  // namespace gatefold::support
