#pragma once

#include <concepts>
#include <cstddef>
#include <exception>
#include <span>
#include <string>

/// The processes of a run. A world is a class with
///
///     int rank() const;  int size() const;                       // this process, and the number of processes
///     void exchange(outgoing, incoming);                         // every message is delivered when it returns
///     void fail(const std::string& sentence) noexcept;           // tells the others why this process ends
///     void listen();                                             // optional: throws if another process is known
///                                                                // to have failed; does not wait
///     void begin(outgoing, incoming);  void finish();            // optional: exchange in two calls. Messages are
///                                                                // transferred in between; the lists and their memory
///                                                                // stay valid until finish or fail
///
/// Messages from one process to another arrive in the order in which they are listed. All processes call exchange in
/// the same order, from one thread at a time. An error of any process throws DeviceError, so that no process waits
/// forever for one that has failed.
namespace gatefold::dist {

/// Bytes for another process.
struct Outgoing {
  int rank;
  const std::byte* data;
  std::size_t bytes;
};
/// Bytes from another process, as many as it sends.
struct Incoming {
  int rank;
  std::byte* data;
  std::size_t bytes;
};

/// The functions that a run of several processes needs: the class above.
template <class W>
concept World = requires(W world, const W known, std::span<const Outgoing> outgoing, std::span<const Incoming> incoming,
                         const std::string& sentence) {
  { known.rank() } -> std::convertible_to<int>;
  { known.size() } -> std::convertible_to<int>;
  world.exchange(outgoing, incoming);
  { world.fail(sentence) }
  noexcept;
};

/// Calls f(). If it throws, tells the other processes why.
template <class W, class F>
void or_fail(W& world, const F& f) {
  try {
    f();
  } catch (const std::exception& error) {
    world.fail(error.what());
    throw;
  }
}

/// A world with an exchange in two calls.
template <class W>
concept StartingWorld = World<W> &&
    requires(W world, std::span<const Outgoing> outgoing, std::span<const Incoming> incoming) {
  world.begin(outgoing, incoming);
  world.finish();
};

/// A world whose messages can be on devices: exchange_on_device(outgoing, incoming), with data that is ready when it is
/// called. In other worlds such messages go through the host.
template <class W>
concept DeviceWorld = World<W> &&
    requires(W world, std::span<const Outgoing> outgoing, std::span<const Incoming> incoming) {
  world.exchange_on_device(outgoing, incoming);
};

/// The world of a single process; it needs no library.
struct Alone {
  int rank() const { return 0; }
  int size() const { return 1; }
  void exchange(std::span<const Outgoing>, std::span<const Incoming>) {}
  void fail(const std::string&) noexcept {}
};

}  // namespace gatefold::dist
