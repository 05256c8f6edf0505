#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstring>
#include <exception>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gatefold/core/error.hpp"
#include "gatefold/core/types.hpp"
#include "gatefold/dist/world.hpp"

/// A batch is cut into shards, each of which runs the same program on its part: as a thread of one of the processes.
/// What shards compute together depends on how many they are, and never on how many processes run them.
namespace gatefold::dist {

/// [first, first + count) of `of` things, for place `index` of `places`: as even as can be, in order.
struct Range {
  Index first = 0, count = 0;
  static Range of(Index things, Index index, Index places) {
    const Index first = things * index / places;
    return {first, things * (index + 1) / places - first};
  }
};

/// Bytes that a shard gives to another, or takes from it.
using Bytes = std::span<const std::byte>;
using Room = std::span<std::byte>;

namespace group {

/// Thrown where a shard waits for one that has failed; run() throws what the first one threw.
struct Stopped : Error {
  Stopped() : Error("dist: another shard has failed") {}
};

/// The shards that are threads of this process, and where they meet.
template <World W>
class Group {
 public:
  Group(W& world, Index shards)
      : world_(world), shards_(shards), here_(Range::of(shards, world.rank(), world.size())), calls_(here_.count) {}

  Index shards() const { return shards_; }
  const Range& here() const { return here_; }

  /// Give bytes out[j] to each shard j and take in[j] from it; all shards of all processes call it in the same order.
  void exchange(Index shard, std::span<const Bytes> out, std::span<const Room> in) {
    call(shard) = {out, in};
    meet([&] {
      expect_sizes();
      exchange_with_other_processes();
    });
    for (Index j = here_.first; j < here_.first + here_.count; ++j) {
      const Bytes from = call(j).out[static_cast<std::size_t>(shard)];
      if (!from.empty()) std::memcpy(in[static_cast<std::size_t>(j)].data(), from.data(), from.size());
    }
    meet([] {});
  }

  /// A shard has left: whoever waits for it waits for ever.
  void leave(Index shard) {
    const std::lock_guard lock(mutex_);
    ++left_;
    if (arrived_ > 0)
      stop(std::make_exception_ptr(DeviceError("dist: shard " + std::to_string(shard) +
                                               " has returned, and others wait for it: they do not run the same "
                                               "program")));
  }
  /// A shard has thrown.
  void fail(std::exception_ptr failure) {
    const std::lock_guard lock(mutex_);
    stop(failure);
  }
  std::exception_ptr failure() const { return failure_; }

 private:
  struct Call {
    std::span<const Bytes> out;
    std::span<const Room> in;
  };
  Call& call(Index shard) { return calls_[static_cast<std::size_t>(shard - here_.first)]; }

  /// Wait for all shards of this process; the last one to come runs `alone` before the others go on.
  template <class F>
  void meet(const F& alone) {
    std::unique_lock lock(mutex_);
    if (failure_) throw Stopped();
    if (left_ > 0)
      throw DeviceError("dist: a shard waits for others that have returned: they do not run the same program");
    if (++arrived_ < here_.count) {
      const Index now = generation_;
      changed_.wait(lock, [&] { return generation_ != now || failure_; });
      if (generation_ == now) throw Stopped();
      return;
    }
    try {
      alone();
    } catch (...) {
      stop(std::current_exception());
      throw;
    }
    arrived_ = 0;
    ++generation_;
    changed_.notify_all();
  }
  void stop(std::exception_ptr failure) {
    if (!failure_) failure_ = failure;
    changed_.notify_all();
  }

  /// Before anybody reads: a shard that throws takes its bytes along.
  void expect_sizes() {
    for (Index i = here_.first; i < here_.first + here_.count; ++i)
      for (Index j = here_.first; j < here_.first + here_.count; ++j) {
        const std::size_t given = call(i).out[static_cast<std::size_t>(j)].size();
        const std::size_t expected = call(j).in[static_cast<std::size_t>(i)].size();
        if (given != expected)
          throw DeviceError("dist: shard " + std::to_string(i) + " gives shard " + std::to_string(j) + " " +
                            std::to_string(given) + " bytes, which expects " + std::to_string(expected) +
                            ": they do not run the same program");
      }
  }
  /// Messages of two processes are listed by who gives, then by who takes, on both sides.
  void exchange_with_other_processes() {
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
    if (world_.size() > 1) world_.exchange(outgoing_, incoming_);
  }

  W& world_;
  const Index shards_;
  const Range here_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Call> calls_;
  Index arrived_ = 0, generation_ = 0, left_ = 0;
  std::exception_ptr failure_;
  std::vector<Outgoing> outgoing_;
  std::vector<Incoming> incoming_;
};

}  // namespace group

/// One shard of a run, in the hands of the program that it runs: the communicator of `dist`.
///
/// Every function below is called by all shards, in the same order and with sizes that agree.
/// @throws DeviceError where another shard or process has failed, stands still or runs another program
template <World W>
class Shard {
 public:
  Shard(group::Group<W>& group, Index index)
      : group_(group), index_(index), out_(static_cast<std::size_t>(count())), in_(static_cast<std::size_t>(count())) {}

  Index index() const { return index_; }
  Index count() const { return group_.shards(); }
  /// Of the shards that this process runs, to share out its processors.
  Index in_this_process() const { return group_.here().count; }
  /// Its part of things that are dealt in order: items, experts.
  Range part_of(Index things) const { return Range::of(things, index(), count()); }

  /// Give out[j] to shard j and take in[j] from it.
  void exchange(std::span<const Bytes> out, std::span<const Room> in) { group_.exchange(index_, out, in); }
  void barrier() {
    clear();
    exchange(out_, in_);
  }

  /// all = what each shard gives, one after the other; counts[j] values from shard j.
  template <class T>
  void all_gather(const T* mine, std::span<const Index> counts, T* all) {
    for (std::size_t j = 0; j < counts.size(); ++j) {
      out_[j] = bytes(mine, counts[static_cast<std::size_t>(index_)]);
      in_[j] = room(all, counts[j]);
      all += counts[j];
    }
    exchange(out_, in_);
  }
  /// The same number from each.
  template <class T>
  void all_gather(const T* mine, Index each, T* all) {
    std::vector<Index> counts(static_cast<std::size_t>(count()), each);
    all_gather<T>(mine, counts, all);
  }

  /// The same on shard 0 alone.
  template <class T>
  void gather(const T* mine, std::span<const Index> counts, T* all) {
    clear();
    out_[0] = bytes(mine, counts[static_cast<std::size_t>(index_)]);
    if (index_ == 0)
      for (std::size_t j = 0; j < counts.size(); ++j) {
        in_[j] = room(all, counts[j]);
        all += counts[j];
      }
    exchange(out_, in_);
  }

  /// values ← Σ over the shards, on all of them.
  /// @cost   each shard gives and takes 2 (C − 1)/C of the values, and adds C parts of 1/C of them
  /// @order  ((0 + 1) + (2 + 3)) + …: a binary tree over the shards, whoever runs them
  template <class T>
  void sum(T* values, Index n) {
    if (count() == 1) return;
    const Range mine = part_of(n);
    parts_.resize(static_cast<std::size_t>(mine.count * count()) * sizeof(T));
    T* parts = reinterpret_cast<T*>(parts_.data());
    for (Index j = 0; j < count(); ++j) {
      const Range theirs = Range::of(n, j, count());
      out_[static_cast<std::size_t>(j)] = bytes(values + theirs.first, theirs.count);
      in_[static_cast<std::size_t>(j)] = room(parts + j * mine.count, mine.count);
    }
    exchange(out_, in_);
    for (Index step = 1; step < count(); step *= 2)
      for (Index j = 0; j + step < count(); j += 2 * step)
        for (Index i = 0; i < mine.count; ++i) parts[j * mine.count + i] += parts[(j + step) * mine.count + i];
    for (Index j = 0; j < count(); ++j) {
      const Range theirs = Range::of(n, j, count());
      out_[static_cast<std::size_t>(j)] = bytes(parts, mine.count);
      in_[static_cast<std::size_t>(j)] = room(values + theirs.first, theirs.count);
    }
    exchange(out_, in_);
  }
  template <class T>
  T sum(T value) {
    sum(&value, 1);
    return value;
  }

  template <class T>
  static Bytes bytes(const T* from, Index n) {
    return std::as_bytes(std::span<const T>(from, static_cast<std::size_t>(n)));
  }
  template <class T>
  static Room room(T* to, Index n) {
    return std::as_writable_bytes(std::span<T>(to, static_cast<std::size_t>(n)));
  }

 private:
  void clear() {
    for (std::size_t j = 0; j < out_.size(); ++j) {
      out_[j] = {};
      in_[j] = {};
    }
  }

  group::Group<W>& group_;
  const Index index_;
  std::vector<Bytes> out_;
  std::vector<Room> in_;
  std::vector<std::byte> parts_;
};

/// Run program(shard) for every shard, as a thread each of the processes of `world`: those of a process are neighbours.
///
///     dist::Mpi world;
///     dist::run(world, 4, [&](auto& shard) { … });       // mpirun -n 1, 2, 3 or 4: the same bits
///
/// @param shards  at least as many as processes; how many they are is part of what is computed
/// @throws ArgumentError unless there are as many; what a shard of this process threw first, after all have ended;
///         DeviceError where another process has failed
template <World W, class F>
void run(W& world, Index shards, const F& program) {
  expect(shards >= world.size(), "dist::run", "shards", Joined{"at least ", world.size(), " (the processes)"}, shards);
  group::Group<W> all(world, shards);
  const auto one = [&](Index index) {
    try {
      Shard<W> shard(all, index);
      program(shard);
      all.leave(index);
    } catch (...) {
      all.fail(std::current_exception());
    }
  };
  const Range here = all.here();
  std::vector<std::thread> others;
  try {
    for (Index i = here.first + 1; i < here.first + here.count; ++i) others.emplace_back(one, i);
  } catch (...) {  // no more threads are to be had
    all.fail(std::current_exception());
  }
  one(here.first);
  for (std::thread& thread : others) thread.join();
  if (!all.failure()) return;
  try {
    std::rethrow_exception(all.failure());
  } catch (const std::exception& e) {
    world.fail(e.what());
    throw;
  } catch (...) {
    world.fail("an exception that is no std::exception");
    throw;
  }
}

}  // namespace gatefold::dist
