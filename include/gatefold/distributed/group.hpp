#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "gatefold/distributed/memory.hpp"
#include "gatefold/distributed/processes.hpp"

/// Data exchange between shards. The shards of a process are threads that copy bytes from each other. For each
/// exchange, one of these threads also exchanges the bytes of all shards of the process with the other processes.
namespace gatefold::dist {

/// Statistics of a shard's data exchanges: their number, bytes and seconds.
struct Traffic {
  Index exchanges = 0;
  std::uint64_t given = 0;  // number of bytes given to other shards
  std::uint64_t sent = 0;   // number of these bytes that went to other processes
  /// Seconds spent in exchanges. The time of waiting for other shards counts; the time of work() does not.
  double seconds = 0;
  /// Seconds of waiting until all shards have arrived at an exchange. Waiting for other processes counts only with the
  /// option RunOptions::measure_waiting.
  double waiting = 0;
};

/// The default argument for the work that runs during an exchange: it does nothing.
struct NoWork {
  void operator()() const {}
};

namespace group {

inline std::string sentence_of(const std::exception_ptr& failure);

/// The exception that ends the other shards after one shard has failed. The caller of run() gets the exception of the
/// shard that failed first instead.
struct GATEFOLD_UNIQUE Stopped : Error {
  Stopped() : Error("dist: another shard has failed") {}
};

/// Exchanges bytes between the shards of this process, which are threads, and with the shards of other processes.
template <World W>
class Group {
 public:
  /// @param meets  true if processes wait for each other before each exchange, so that waiting is measured separately
  ///         from moving bytes
  Group(W& world, Index shards, bool meets = false)
      : world_(world),
        shards_(shards),
        here_(Range::of(shards, world.rank(), world.size())),
        meets_(meets && world.size() > 1),
        calls_(static_cast<std::size_t>(here_.count)) {}

  int rank() const { return world_.rank(); }
  Index shards() const { return shards_; }
  const Range& here() const { return here_; }

  /// Sends the bytes out[j] to each shard j, receives in[j] from it, and runs work(). All shards of all processes must
  /// call exchange in the same order. work() must not start another exchange, and must not touch these bytes. If W is a
  /// StartingWorld, bytes on the host are transferred to other processes while work() runs, unless `meets` is true. All
  /// other bytes are transferred after work().
  /// @param memory  the memory of the bytes. Bytes for other processes must be on the host, unless W is a DeviceWorld
  template <class M, class Work = NoWork>
  void exchange(const M& memory, Index shard, std::span<const Bytes> out, std::span<const Room> in, Traffic& traffic,
                const Work& work = {}) {
    const auto begin = Clock::now();
    memory.finish();  // the bytes must be complete before other shards read them
    start(shard, {out, in, M::is_host, true}, !std::is_same_v<Work, NoWork>);
    const auto started = Clock::now();
    run(work);
    const auto back = Clock::now();
    meet([&] {
      if (meets_) exchange_values(world_, std::vector<char>(static_cast<std::size_t>(world_.size())));  // a barrier
      all_came_ = Clock::now();
      finish_with_other_processes();
    });
    const auto waited = all_came_ - back;  // read before the next exchange overwrites all_came_
    auto computed = back - started;
    std::exception_ptr failure;
    try {
      if constexpr (!std::is_same_v<Work, NoWork>) {  // wait for device work that work() has started
        const auto met = Clock::now();
        memory.finish();
        computed += Clock::now() - met;
      }
      for (Index j = here_.first; j < here_.first + here_.count; ++j) {
        const Bytes from = call(j).out[static_cast<std::size_t>(shard)];
        memory.copy(from.data(), static_cast<Index>(from.size()), in[static_cast<std::size_t>(j)].data());
      }
      memory.finish();
    } catch (...) {  // a device error; it is thrown below, after all shards have read this shard's bytes
      failure = std::current_exception();
    }
    meet([] {});
    if (failure) std::rethrow_exception(failure);
    call(shard).under_way = false;
    ++traffic.exchanges;
    for (Index j = 0; j < shards_; ++j) {
      const std::size_t bytes = out[static_cast<std::size_t>(j)].size();
      if (j != shard) traffic.given += bytes;
      if (!here_.has(j)) traffic.sent += bytes;
    }
    traffic.seconds += std::chrono::duration<double>(Clock::now() - begin - computed).count();
    traffic.waiting += std::chrono::duration<double>(waited).count();
  }

  /// Records that the program of a shard has returned. If other shards wait for this shard, stops the run with an
  /// error, because they would wait forever.
  void leave(Index shard) {
    const std::lock_guard lock(mutex_);
    ++left_;
    if (arrived_ > 0)
      stop(std::make_exception_ptr(
          DeviceError("dist: shard " + std::to_string(shard) +
                      " has returned while other shards wait for it: the shards do not run the same program")));
  }
  /// Stops the run because a shard has thrown an exception.
  void fail(std::exception_ptr failure) {
    const std::lock_guard lock(mutex_);
    stop(failure);
  }
  std::exception_ptr failure() const { return failure_; }

 private:
  using Clock = std::chrono::steady_clock;
  struct Call {
    std::span<const Bytes> out{};
    std::span<const Room> in{};
    bool on_host = true, under_way = false;
  };
  Call& call(Index shard) { return calls_[static_cast<std::size_t>(shard - here_.first)]; }

  /// Starts an exchange: records the bytes of this shard. The last shard of this process that calls start checks all
  /// sizes. If this last call has `works` = true, it also starts the transfer to other processes.
  void start(Index shard, const Call& given, bool works) {
    if (call(shard).under_way)
      throw DeviceError("dist: the work that runs during an exchange must not start another exchange");
    call(shard) = given;
    const std::lock_guard lock(mutex_);
    expect_all_here();
    if (++started_ < here_.count) return;
    started_ = 0;
    or_stop([&] {
      expect_sizes();
      if (works) begin_with_other_processes();
    });
  }
  template <class F>
  void run(const F& work) {
    try {
      work();
    } catch (...) {  // other shards wait for this shard and read its bytes, so stop them
      const std::lock_guard lock(mutex_);
      stop(std::current_exception());
      if (std::exchange(begun_, false)) world_.fail(sentence_of(failure_));
      throw;
    }
  }

  /// A barrier of the shards of this process. The last shard to arrive calls the given function before the other shards
  /// continue.
  void meet(const auto& alone) {
    std::unique_lock lock(mutex_);
    expect_all_here();
    if (++arrived_ < here_.count) {
      const Index now = generation_;
      changed_.wait(lock, [&] { return generation_ != now || failure_; });
      if (generation_ == now) throw Stopped();
      return;
    }
    or_stop(alone);
    arrived_ = 0;
    ++generation_;
    changed_.notify_all();
  }
  void expect_all_here() const {
    if (failure_) throw Stopped();
    if (left_ > 0)
      throw DeviceError(
          "dist::run: a shard waits for shards that have returned: the shards do not run the same program");
  }
  void or_stop(const auto& f) {
    try {
      f();
    } catch (...) {
      stop(std::current_exception());
      throw;
    }
  }
  void stop(const std::exception_ptr& failure) {
    if (!failure_) failure_ = failure;
    changed_.notify_all();
  }

  /// Checks that the shards of this process send each other as many bytes as the receiving shards expect. All sizes are
  /// checked before any shard reads, because a shard that throws frees its bytes.
  void expect_sizes() {
    for (Index i = here_.first; i < here_.first + here_.count; ++i)
      for (Index j = here_.first; j < here_.first + here_.count; ++j) {
        const std::size_t given = call(i).out[static_cast<std::size_t>(j)].size();
        const std::size_t expected = call(j).in[static_cast<std::size_t>(i)].size();
        if (given != expected)
          throw DeviceError("dist: shard " + std::to_string(i) + " sends shard " + std::to_string(j) + " " +
                            std::to_string(given) + " bytes, but that shard expects " + std::to_string(expected) +
                            ": the shards do not run the same program");
      }
  }
  /// Starts the transfer to other processes, if the world has the functions begin and finish, the bytes are on the
  /// host, and `meets_` is false.
  void begin_with_other_processes() {
    if constexpr (StartingWorld<W>) {
      if (meets_ || world_.size() == 1 || on_devices()) return;
      list_messages();
      world_.begin(outgoing_, incoming_);
      begun_ = true;
    }
  }
  void finish_with_other_processes() {
    if constexpr (StartingWorld<W>)
      if (std::exchange(begun_, false)) return world_.finish();
    if (world_.size() == 1) return;
    list_messages();
    if constexpr (DeviceWorld<W>)
      if (on_devices()) return world_.exchange_on_device(outgoing_, incoming_);
    world_.exchange(outgoing_, incoming_);
  }
  bool on_devices() { return DeviceWorld<W> && !call(here_.first).on_host; }
  /// For every other process, lists the messages to it and from it, sorted by sending shard, then by receiving shard.
  /// The other process uses the same order, so that the messages match.
  void list_messages() {
    outgoing_.clear();
    incoming_.clear();
    for (int rank = 0; rank < world_.size(); ++rank) {
      if (rank == world_.rank()) continue;
      const Range there = Range::of(shards_, rank, world_.size());
      for (Index i = here_.first; i < here_.first + here_.count; ++i)
        for (Index j = there.first; j < there.first + there.count; ++j) {
          const Bytes bytes = call(i).out[static_cast<std::size_t>(j)];
          if (!bytes.empty()) outgoing_.push_back({rank, bytes.data(), bytes.size()});
        }
      for (Index j = there.first; j < there.first + there.count; ++j)
        for (Index i = here_.first; i < here_.first + here_.count; ++i) {
          const Room room = call(i).in[static_cast<std::size_t>(j)];
          if (!room.empty()) incoming_.push_back({rank, room.data(), room.size()});
        }
    }
  }

  W& world_;
  const Index shards_;
  const Range here_;
  const bool meets_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Call> calls_;
  Index started_ = 0, arrived_ = 0, generation_ = 0, left_ = 0;
  bool begun_ = false;  // true between world_.begin and world_.finish
  std::exception_ptr failure_;
  std::vector<Outgoing> outgoing_;
  std::vector<Incoming> incoming_;
  Clock::time_point all_came_{};
};

/// Returns the message (what()) of an exception.
inline std::string sentence_of(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& e) {
    return e.what();
  } catch (...) {
    return "an exception that does not derive from std::exception";
  }
}

/// Checks that all processes divide the batch into the same number of shards.
/// @throws ArgumentError if the numbers differ
template <World W>
void expect_same_shards(W& world, Index shards) {
  const std::vector<Index> mine(static_cast<std::size_t>(world.size()), shards), theirs = exchange_values(world, mine);
  for (std::size_t rank = 0; rank < theirs.size(); ++rank)
    expect(theirs[rank] == shards, "dist::run", "shards", Joined{theirs[rank], " (as on rank ", rank, ")"}, shards);
}

}  // namespace group

}  // namespace gatefold::dist
