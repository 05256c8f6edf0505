#pragma once

#include <chrono>
#include <concepts>
#include <cstddef>
#include <exception>
#include <span>
#include <string>
#include <thread>
#include <vector>

/// The connection between the processes of a run, called a world: a class with the functions
///
///     int rank() const;  int size() const;                       // this process, and the number of processes
///     void exchange(outgoing, incoming);                         // every message is delivered when it returns
///     void fail(const std::string& sentence) noexcept;           // sends to all other processes the reason why this
///                                                                // process ends
///     void listen();                                             // optional: throws if another process is known to
///                                                                // have failed; does not wait
///     void begin(outgoing, incoming);  void finish();            // optional: exchange in two calls. Messages are
///                                                                // transferred in between. The lists and the memory
///                                                                // must stay valid until finish or fail
///
/// Messages from one process to another arrive in the order in which they are listed. All processes call exchange in
/// the same order, from one thread at a time. If a process fails, exchange throws DeviceError in the other processes,
/// so that they do not wait forever.
namespace gatefold::dist {

/// A message to another process: the rank (number) of that process, and the bytes to send.
struct Outgoing {
  int rank;
  const std::byte* data;
  std::size_t bytes;
};
/// A message from another process: the rank (number) of that process, and memory for the bytes. `bytes` is the number
/// of bytes that the other process sends.
struct Incoming {
  int rank;
  std::byte* data;
  std::size_t bytes;
};

/// A connection between processes: a class with the functions rank, size, exchange and fail.
template <class W>
concept World = requires(W world, const W known, std::span<const Outgoing> outgoing, std::span<const Incoming> incoming,
                         const std::string& sentence) {
  { known.rank() } -> std::convertible_to<int>;
  { known.size() } -> std::convertible_to<int>;
  world.exchange(outgoing, incoming);
  { world.fail(sentence) }
  noexcept;
};

/// Calls f(). If f throws, sends the reason to the other processes (world.fail), and throws the exception again.
template <class W, class F>
void or_fail(W& world, const F& f) {
  try {
    f();
  } catch (const std::exception& error) {
    world.fail(error.what());
    throw;
  }
}

/// Sends the value to_each[r] to each other rank r. Returns the values that the other ranks have sent to this rank,
/// sorted by rank. Element rank() of the result is to_each[rank()].
template <World W, class T>
std::vector<T> exchange_values(W& world, const std::vector<T>& to_each) {
  std::vector<T> values = to_each;
  std::vector<Outgoing> outgoing;
  std::vector<Incoming> incoming;
  for (int rank = 0; rank < world.size(); ++rank) {
    if (rank == world.rank()) continue;
    const auto at = static_cast<std::size_t>(rank);
    outgoing.push_back({rank, reinterpret_cast<const std::byte*>(&to_each[at]), sizeof(T)});
    incoming.push_back({rank, reinterpret_cast<std::byte*>(&values[at]), sizeof(T)});
  }
  if (world.size() > 1) world.exchange(outgoing, incoming);
  return values;
}

/// A world (connection between processes) that can exchange messages in two calls, begin and finish. The process can
/// compute in between.
template <class W>
concept StartingWorld = World<W> &&
    requires(W world, std::span<const Outgoing> outgoing, std::span<const Incoming> incoming) {
  world.begin(outgoing, incoming);
  world.finish();
};

/// A world (connection between processes) with a function exchange_on_device(outgoing, incoming) for messages in device
/// memory. The data must be complete when the function is called. If a world has no such function, these messages are
/// copied through the host.
template <class W>
concept DeviceWorld = World<W> &&
    requires(W world, std::span<const Outgoing> outgoing, std::span<const Incoming> incoming) {
  world.exchange_on_device(outgoing, incoming);
};

/// The world (connection between processes) of a run with a single process; it needs no library.
struct Alone {
  int rank() const { return 0; }
  int size() const { return 1; }
  void exchange(std::span<const Outgoing>, std::span<const Incoming>) {}
  void fail(const std::string&) noexcept {}
};

using Seconds = std::chrono::duration<double>;

/// Polls until done() returns true or the time is up. Use it if a blocking call that waits for the event could not be
/// cancelled. It first polls without a pause, because many events happen within microseconds. It then pauses between
/// two polls, so that other processes can use the processor.
///
/// @param done  called repeatedly, and once more after the limit has passed
/// @return whether done() was true
bool wait_until(Seconds limit, auto done) {
  // The number of polls without a pause. 1000 was tried: with four processes on two processors, small messages then
  // took 1.7 times as long as with 200.
  constexpr int busy = 200;
  constexpr std::chrono::microseconds rest{50};
  const auto begin = std::chrono::steady_clock::now();
  for (int asked = 0;; ++asked) {
    const bool late = std::chrono::steady_clock::now() - begin >= limit;
    if (done()) return true;
    if (late) return false;
    if (asked < busy)
      std::this_thread::yield();
    else
      std::this_thread::sleep_for(rest);
  }
}

}  // namespace gatefold::dist
