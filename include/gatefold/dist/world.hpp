#pragma once

#include <concepts>
#include <cstddef>
#include <exception>
#include <span>
#include <string>

/// The processes that a run is made of. A world is a class with
///
///     int rank() const;  int size() const;                       // this process, and how many there are
///     void exchange(outgoing, incoming);                         // every message is delivered when it returns
///     void fail(const std::string& sentence) noexcept;           // tells the others why this process ends
///     void listen();                                             // optional: throws where another has failed, if that
///                                                                // is known, and waits for nobody
///     void begin(outgoing, incoming);  void finish();            // optional: exchange in two halves, between which
///                                                                // messages are on their way. The lists and what they
///                                                                // name stay meanwhile; fail gives them up
///
/// Messages from one process to another arrive in the order in which they are listed; all call exchange in the same
/// order, from one thread at a time. What goes wrong, here or there, throws DeviceError: none waits for ever for one
/// that failed.
namespace gatefold::dist {

/// Bytes for another process.
struct Outgoing {
  int rank;
  const std::byte* data;
  std::size_t bytes;
};
/// Bytes that another process sends, and as many as it sends.
struct Incoming {
  int rank;
  std::byte* data;
  std::size_t bytes;
};

/// What runs of several processes need to know of them and to ask: the class above.
template <class W>
concept World = requires(W world, const W known, std::span<const Outgoing> outgoing, std::span<const Incoming> incoming,
                         const std::string& sentence) {
  { known.rank() } -> std::convertible_to<int>;
  { known.size() } -> std::convertible_to<int>;
  world.exchange(outgoing, incoming);
  { world.fail(sentence) }
  noexcept;
};

/// f(); where it throws, the others are told why.
template <class W, class F>
void or_fail(W& world, const F& f) {
  try {
    f();
  } catch (const std::exception& error) {
    world.fail(error.what());
    throw;
  }
}

/// A world that exchanges in two halves.
template <class W>
concept StartingWorld = World<W> &&
    requires(W world, std::span<const Outgoing> outgoing, std::span<const Incoming> incoming) {
  world.begin(outgoing, incoming);
  world.finish();
};

/// A world whose messages may lie on devices: exchange_on_device(outgoing, incoming), of what is there when it is
/// called. For other worlds they go by way of the host.
template <class W>
concept DeviceWorld = World<W> &&
    requires(W world, std::span<const Outgoing> outgoing, std::span<const Incoming> incoming) {
  world.exchange_on_device(outgoing, incoming);
};

/// One process, which needs no library to talk to itself.
struct Alone {
  int rank() const { return 0; }
  int size() const { return 1; }
  void exchange(std::span<const Outgoing>, std::span<const Incoming>) {}
  void fail(const std::string&) noexcept {}
};

}  // namespace gatefold::dist
