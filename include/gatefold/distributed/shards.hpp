#pragma once

#include <cstddef>
#include <exception>
#include <span>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "gatefold/backend/scratch.hpp"
#include "gatefold/distributed/group.hpp"

/// Runs a program on shards, the parts into which a batch is divided. Each shard runs the same program on its part, as
/// a thread of one of the processes. Results depend on the number of shards, but never on the number of processes.
namespace gatefold::dist {

/// The communicator of one shard of a run: it exchanges data with the other shards. run() passes it to the program.
///
/// All shards must call the functions that exchange data, in the same order and with sizes that agree.
/// @throws ArgumentError if another thread is in a function of this shard; Error if another shard of this process has
///         failed; DeviceError if another process has failed or hangs, or if another shard runs a different program
template <World W>
class Shard {
 public:
  Shard(group::Group<W>& group, Index index)
      : group_(group), index_(index), out_(static_cast<std::size_t>(count())), in_(static_cast<std::size_t>(count())) {}

  Index index() const { return index_; }
  Index count() const { return group_.shards(); }
  /// Returns the rank of the process that runs this shard.
  int rank() const { return group_.rank(); }
  /// Returns the number of shards in this process, for example to divide the processor cores among them.
  Index in_this_process() const { return group_.here().count; }
  /// Returns the range of this shard when `things` things, for example items or experts, are divided among the shards
  /// evenly and in order.
  Range part_of(Index things) const { return Range::of(things, index(), count()); }

  /// Returns statistics of this shard so far: the number of exchanges, their bytes and seconds.
  const Traffic& traffic() const { return traffic_; }

  /// Sends the bytes out[j] to each shard j and receives in[j] from it, in host memory.
  void exchange(std::span<const Bytes> out, std::span<const Room> in) { exchange(HostMemory{}, out, in); }
  /// Sends the bytes out[j] to each shard j and receives in[j] from it, in the given kind of memory, for example
  /// memory_of(ctx). work() runs during the exchange. Bytes that go to other processes through host memory are
  /// transferred while work() runs, if the world has begin and finish and RunOptions::measure_waiting is false. work()
  /// must not start another exchange, and must not touch the bytes.
  /// @cost   on a device, the host waits for the context twice without `work`, or three times with `work`. It waits
  ///         once more if the bytes are copied through host memory
  template <class M, class Work = NoWork>
  void exchange(const M& memory, std::span<const Bytes> out, std::span<const Room> in, const Work& work = {}) {
    const OneThread::Scope alone(alone_);
    if constexpr (M::is_host || DeviceWorld<W>) {
      group_.exchange(memory, index_, out, in, traffic_, work);
    } else {
      staged_.begin(memory, out, in, group_.here());
      group_.exchange(memory, index_, staged_.out(), staged_.in(), traffic_, work);
      staged_.end(memory, in, group_.here());
    }
  }
  void barrier() {
    const OneThread::Scope alone(alone_);
    clear();
    exchange(out_, in_);
  }

  /// Gathers the values of all shards in `all`, one shard after the other. Shard j has counts[j] values.
  template <class T>
  void all_gather(const T* mine, std::span<const Index> counts, T* all) {
    all_gather(HostMemory{}, mine, counts, all);
  }
  template <class M, class T>
  void all_gather(const M& memory, const T* mine, std::span<const Index> counts, T* all) {
    const OneThread::Scope alone(alone_);
    for (std::size_t j = 0; j < counts.size(); ++j) {
      out_[j] = bytes(mine, counts[static_cast<std::size_t>(index_)]);
      in_[j] = room(all, counts[j]);
      all += counts[j];
    }
    exchange(memory, out_, in_);
  }
  /// Returns the values of all shards, one shard after the other. The lists of all shards have the same length.
  template <class T>
  std::vector<T> all_gather(const std::vector<T>& mine) {
    std::vector<T> all(mine.size() * static_cast<std::size_t>(count()));
    all_gather<T>(mine.data(), std::vector<Index>(static_cast<std::size_t>(count()), static_cast<Index>(mine.size())),
                  all.data());
    return all;
  }
  /// Returns the value of each shard.
  template <class T>
  std::vector<T> all_gather(const T& mine) {
    return all_gather(std::vector<T>{mine});
  }

  /// Sends the rows in the range give[j] of `from` to each shard j. Receives rows from each shard j, and writes them to
  /// the range take[j] of `to`. A row has `width` values.
  template <class M, class T, class Work = NoWork>
  void all_to_all(const M& memory, const T* from, std::span<const Range> give, T* to, std::span<const Range> take,
                  Index width = 1, const Work& work = {}) {
    const OneThread::Scope alone(alone_);
    for (std::size_t j = 0; j < give.size(); ++j) {
      out_[j] = bytes(from + give[j].first * width, give[j].count * width);
      in_[j] = room(to + take[j].first * width, take[j].count * width);
    }
    exchange(memory, out_, in_, work);
  }

  /// Gathers the values of all shards like all_gather, but writes `all` only on shard 0.
  template <class M, class T>
  void gather(const M& memory, const T* mine, std::span<const Index> counts, T* all) {
    const OneThread::Scope alone(alone_);
    clear();
    out_[0] = bytes(mine, counts[static_cast<std::size_t>(index_)]);
    if (index_ == 0)
      for (std::size_t j = 0; j < counts.size(); ++j) {
        in_[j] = room(all, counts[j]);
        all += counts[j];
      }
    exchange(memory, out_, in_);
  }

  /// Replaces each of the n values by its sum over the shards, on all shards (all-reduce).
  /// @cost   with C shards, each shard sends and receives 2 (C − 1)/C of the values, and adds up C parts, each with 1/C
  ///         of the values
  /// @order  ((0 + 1) + (2 + 3)) + …: a binary tree over the shards, whichever processes run them
  template <class T>
  void sum(T* values, Index n) {
    const OneThread::Scope alone(alone_);
    parts_.resize(static_cast<std::size_t>(part_of(n).count * count()) * sizeof(T));
    sum(HostMemory{}, values, n, reinterpret_cast<T*>(parts_.data()));
  }
  /// Replaces each of the n values in memory of a context by its sum over the shards, computed on the backend of the
  /// context.
  template <class C, class T>
  void sum(C& ctx, T* values, Index n) {
    auto mark = ctx.mark();
    sum(memory_of(ctx), values, n, ctx.template scratch<T>(part_of(n).count * count()).data());
  }
  template <class T>
  T sum(T value) {  // makes one exchange for each call
    std::vector<T> parts = all_gather(value);
    add_up(HostMemory{}, parts.data(), 1);
    return parts[0];
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
  /// Replaces each of the n values by its sum over the shards. Each shard adds up one part of the values of all shards,
  /// and then sends the sums of this part to all shards.
  /// @param parts  memory for count() parts, each as large as this shard's part of n values
  template <class M, class T>
  void sum(const M& memory, T* values, Index n, T* parts) {
    const OneThread::Scope alone(alone_);
    if (count() == 1) return;
    const Range mine = part_of(n);
    for (Index j = 0; j < count(); ++j) {
      const Range theirs = Range::of(n, j, count());
      out_[static_cast<std::size_t>(j)] = bytes(values + theirs.first, theirs.count);
      in_[static_cast<std::size_t>(j)] = room(parts + j * mine.count, mine.count);
    }
    exchange(memory, out_, in_);
    add_up(memory, parts, mine.count);
    for (Index j = 0; j < count(); ++j) {
      const Range theirs = Range::of(n, j, count());
      out_[static_cast<std::size_t>(j)] = bytes(parts, mine.count);
      in_[static_cast<std::size_t>(j)] = room(values + theirs.first, theirs.count);
    }
    exchange(memory, out_, in_);
  }
  /// Adds up count() arrays of n values, which follow each other in `parts`. Writes the sum to the first array.
  template <class M, class T>
  void add_up(const M& memory, T* parts, Index n) const {
    for (Index step = 1; step < count(); step *= 2)
      for (Index j = 0; j + step < count(); j += 2 * step) memory.add(parts + (j + step) * n, n, parts + j * n);
  }
  void clear() {
    for (std::size_t j = 0; j < out_.size(); ++j) {
      out_[j] = {};
      in_[j] = {};
    }
  }

  OneThread alone_{"Shard", "one shard"};
  group::Group<W>& group_;
  const Index index_;
  Traffic traffic_{};
  std::vector<Bytes> out_;
  std::vector<Room> in_;
  std::vector<std::byte> parts_;
  Staged staged_;
};

/// Options of run.
struct RunOptions {
  /// If true, processes wait for each other before each exchange, so that Traffic.waiting includes the time of waiting
  /// for other processes. This costs a short message to each other process. No bytes are then sent to other processes
  /// while a shard computes.
  bool measure_waiting = false;
};

/// Runs program(shard) for every shard (a part of the batch). Each shard is a thread of one of the processes of
/// `world`. The shards of a process have consecutive indices.
///
///     dist::Mpi world;
///     dist::run(world, 4, [&](auto& shard) { … });       // mpirun -n 1, 2, 3 or 4: the same bits
///
/// @param shards  number of shards, at least the number of processes. The bits of the results depend on it
/// @throws ArgumentError if there are fewer shards than processes, or if processes pass different numbers of shards;
///         the first exception of a shard of this process, after all shards of this process have ended; DeviceError if
///         another process has failed, or if a thread cannot be started
template <World W, class F>
void run(W& world, Index shards, const F& program, const RunOptions& options = {}) {
  expect(shards >= world.size(), "dist::run", "shards", Joined{"at least ", world.size(), " (the number of processes)"},
         shards);
  group::expect_same_shards(world, shards);
  group::Group<W> all(world, shards, options.measure_waiting);
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
  Index next = here.first + 1;
  try {
    for (; next < here.first + here.count; ++next) others.emplace_back(one, next);
  } catch (const std::system_error& e) {
    all.fail(std::make_exception_ptr(
        DeviceError("dist::run: cannot start a thread for shard " + std::to_string(next) + ": " + e.what())));
  } catch (...) {
    all.fail(std::current_exception());
  }
  one(here.first);
  for (std::thread& thread : others) thread.join();
  if (!all.failure()) return;
  world.fail(group::sentence_of(all.failure()));
  std::rethrow_exception(all.failure());
}

/// Runs f() on every shard and makes the shards agree on errors. If f throws FileError or ArgumentError on some shards,
/// every shard throws the error of the lowest-numbered of these shards. All shards can therefore catch the error and
/// continue together. f must not exchange data with other shards.
/// @throws FileError or ArgumentError on all shards if f() throws it on a shard. Any other exception of f() is thrown
///         only on its shard, and ends the run
/// @cost   a small exchange, and a second one for the message if f() throws
template <class ShardT, class F>
void collectively(ShardT& shard, const F& f) {
  enum Outcome : Index { done, file, argument };
  struct Told {
    Index outcome, length;
  };
  Told mine{done, 0};
  std::string sentence;
  const auto failed = [&](Outcome outcome, const char* what) {
    sentence = what;
    mine = {outcome, static_cast<Index>(sentence.size())};
  };
  try {
    f();
  } catch (const FileError& e) {
    failed(file, e.what());
  } catch (const ArgumentError& e) {
    failed(argument, e.what());
  }
  const std::vector<Told> all = shard.all_gather(mine);
  std::size_t first = 0;
  while (first < all.size() && all[first].outcome == done) ++first;
  if (first == all.size()) return;
  std::vector<Index> counts(all.size());
  counts[first] = all[first].length;
  std::string said(static_cast<std::size_t>(counts[first]), '\0');
  shard.template all_gather<char>(sentence.data(), counts, said.data());
  if (all[first].outcome == file) throw FileError(said);
  throw ArgumentError(said);
}

}  // namespace gatefold::dist
