#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "gatefold/core/error.hpp"
#include "gatefold/distributed/processes.hpp"

namespace gatefold::dist {

/// A world (connection between processes) that wraps another world. It combines the messages between two nodes into
/// fewer and longer messages (hierarchical all-to-all).
///
///     dist::Mpi world;                          // mpirun -n 32, eight on each node: ranks 0 to 7 on the first, …
///     dist::Hierarchical nodes{world, 8};
///     dist::run(nodes, 32, program);
///
/// A node has m of the R ranks; rank (a, i) is rank number i of node a. To send bytes to rank (b, j), rank (a, i) first
/// sends them to rank (a, j). Rank (a, j) then sends the bytes of all ranks of node a for (b, j) as one message. A rank
/// therefore sends R/m − 1 messages to other nodes instead of R − m, each m times as long. However, bytes for another
/// node are first transferred within the node of the sender, unless sender and receiver have the same number i within
/// their nodes. Hierarchical is faster if messages are many and short. The bits of a run stay the same.
/// @cost   an exchange is three exchanges of `world`: m − 1 short messages with sizes within the node, the forwarded
///         bytes within the node, and the messages between nodes. Memory for the bytes that a rank sends to other
///         nodes, for the bytes that it forwards, and for the bytes that it receives from other nodes; no allocation
///         after a first call with as many bytes
template <World W>
class Hierarchical {
 public:
  /// @param node  the number of ranks on each node; ranks of a node have consecutive numbers. If it is 1 or the number
  ///         of all ranks, `world` is used unchanged
  /// @throws ArgumentError unless `node` is positive and divides the number of ranks
  Hierarchical(W& world, int node) : world_(world), node_(node) {
    expect(node > 0 && world.size() % node == 0, "Hierarchical", "node",
           Joined{"a positive divisor of ", world.size(), " ranks"}, node);
  }

  int rank() const { return world_.rank(); }
  int size() const { return world_.size(); }
  void fail(const std::string& sentence) noexcept { world_.fail(sentence); }
  void listen() {
    if constexpr (requires { world_.listen(); }) world_.listen();
  }

  /// Exchanges messages between processes, like `world.exchange`.
  /// @throws the errors of `world`; DeviceError if a rank of another node sends a different size than expected
  void exchange(std::span<const Outgoing> outgoing, std::span<const Incoming> incoming) {
    if (one_level()) return world_.exchange(outgoing, incoming);
    tell_sizes(outgoing);
    forward(outgoing, incoming);
    cross(incoming);
  }
  /// Splits an exchange into two calls, begin and finish. If `world` is used unchanged, calls begin and finish of
  /// `world`. Otherwise begin only stores the arguments, and finish does the whole exchange.
  /// @throws the errors of exchange; ArgumentError if another exchange has not finished
  void begin(std::span<const Outgoing> outgoing, std::span<const Incoming> incoming) requires StartingWorld<W> {
    if (one_level()) return world_.begin(outgoing, incoming);
    expect(!begun_, "Hierarchical.begin", "exchange", "the previous exchange to be finished", "one in progress");
    begun_ = true;
    begun_out_ = outgoing;
    begun_in_ = incoming;
  }
  void finish() requires StartingWorld<W> {
    if (one_level()) return world_.finish();
    begun_ = false;
    exchange(begun_out_, begun_in_);
  }

 private:
  using Size = std::uint64_t;

  bool one_level() const { return node_ == 1 || node_ == size(); }
  int nodes() const { return size() / node_; }
  int here() const { return rank() / node_; }   // node a of this rank (a, i)
  int place() const { return rank() % node_; }  // number i of this rank (a, i) within its node
  bool is_here(int rank) const { return rank / node_ == here(); }
  int at(int node, int place) const { return node * node_ + place; }
  /// Calls f(place) for the other ranks of this node; `place` is the rank's number within the node.
  void each_neighbour(const auto& f) const {
    for (int j = 0; j < node_; ++j)
      if (j != place()) f(j);
  }
  void each_other_node(const auto& f) const {
    for (int b = 0; b < nodes(); ++b)
      if (b != here()) f(b);
  }
  static std::size_t index(int i) { return static_cast<std::size_t>(i); }

  void clear() {
    outgoing_.clear();
    incoming_.clear();
  }
  void send(int rank, const void* data, std::size_t bytes) {
    if (bytes > 0) outgoing_.push_back({rank, static_cast<const std::byte*>(data), bytes});
  }
  void get(int rank, void* data, std::size_t bytes) {
    if (bytes > 0) incoming_.push_back({rank, static_cast<std::byte*>(data), bytes});
  }

  /// The first of the three exchanges: ranks of a node exchange the numbers of bytes that they have for other nodes.
  /// Let p be the number of this rank within its node. Afterwards, sizes_[place, node] is the number of bytes that rank
  /// number `place` of this node sends to rank number p of node `node`.
  void tell_sizes(std::span<const Outgoing> outgoing) {
    const std::size_t n = index(nodes());
    told_.assign(index(size()), 0);  // [place, node] number of bytes for rank (node, place)
    for (const Outgoing& message : outgoing)
      told_[index(message.rank % node_) * n + index(message.rank / node_)] += message.bytes;
    sizes_.assign(index(size()), 0);
    clear();
    each_neighbour([&](int j) {
      send(at(here(), j), &told_[index(j) * n], n * sizeof(Size));
      get(at(here(), j), &sizes_[index(j) * n], n * sizeof(Size));
    });
    std::copy_n(&told_[index(place()) * n], n, &sizes_[index(place()) * n]);
    world_.exchange(outgoing_, incoming_);
  }
  Size size_of(int place, int node) const { return sizes_[index(place) * index(nodes()) + index(node)]; }

  /// The second of the three exchanges, within the node. Messages between ranks of the node are sent directly. Bytes
  /// for another node go to the rank of this node that has the same number within its node as the receiver. In cross(),
  /// that rank sends the bytes of all ranks of this node to the receiver as one message. The message has the sizes of
  /// its parts, then the parts, in the order of the ranks of this node.
  void forward(std::span<const Outgoing> outgoing, std::span<const Incoming> incoming) {
    clear();
    for (const Outgoing& message : outgoing)
      if (is_here(message.rank)) outgoing_.push_back(message);
    for (const Incoming& message : incoming)
      if (is_here(message.rank)) incoming_.push_back(message);

    // Packs the bytes of this rank for other nodes, sorted by place and then by node of the receiver.
    std::size_t end = 0;
    starts_.assign(index(size()), 0);
    const auto start_of = [&](int j, int b) -> std::size_t& { return starts_[index(at(b, j))]; };
    for (int j = 0; j < node_; ++j)
      each_other_node([&](int b) {
        start_of(j, b) = end;
        end += told_[index(j) * index(nodes()) + index(b)];
      });
    packed_.resize(end);
    next_ = starts_;
    for (const Outgoing& message : outgoing)
      if (!is_here(message.rank)) {
        copy(message.data, message.bytes, packed_.data() + next_[index(message.rank)]);
        next_[index(message.rank)] += message.bytes;
      }

    end = 0;
    messages_.assign(index(nodes()), {});
    each_other_node([&](int b) {
      Size total = 0;
      for (int i = 0; i < node_; ++i) total += size_of(i, b);
      messages_[index(b)] = {end, total == 0 ? 0 : header() + total};
      end += messages_[index(b)].bytes;
    });
    forwarded_.resize(end);
    each_other_node([&](int b) {
      if (messages_[index(b)].bytes == 0) return;
      std::byte* to = forwarded_.data() + messages_[index(b)].first;
      for (int i = 0; i < node_; ++i, to += sizeof(Size)) {
        const Size bytes = size_of(i, b);
        std::memcpy(to, &bytes, sizeof bytes);
      }
      for (int i = 0; i < node_; ++i) {
        if (i == place())
          copy(packed_.data() + start_of(i, b), size_of(i, b), to);
        else
          get(at(here(), i), to, size_of(i, b));
        to += size_of(i, b);
      }
    });
    each_neighbour([&](int j) {
      each_other_node([&](int b) {
        send(at(here(), j), packed_.data() + start_of(j, b), told_[index(j) * index(nodes()) + index(b)]);
      });
    });
    world_.exchange(outgoing_, incoming_);
  }

  /// Does the last of the three exchanges. Exchanges one message with one rank of every other node: the rank whose
  /// number within its node equals the number of this rank. Then copies the received parts to their destinations.
  void cross(std::span<const Incoming> incoming) {
    clear();
    each_other_node(
        [&](int b) { send(at(b, place()), forwarded_.data() + messages_[index(b)].first, messages_[index(b)].bytes); });
    expected_.assign(index(size()), 0);
    for (const Incoming& message : incoming) expected_[index(message.rank)] += message.bytes;
    std::size_t end = 0;
    each_other_node([&](int b) {
      Size total = 0;
      for (int i = 0; i < node_; ++i) total += expected_[index(at(b, i))];
      messages_[index(b)] = {end, total == 0 ? 0 : header() + total};
      end += messages_[index(b)].bytes;
    });
    arrived_.resize(end);
    each_other_node(
        [&](int b) { get(at(b, place()), arrived_.data() + messages_[index(b)].first, messages_[index(b)].bytes); });
    world_.exchange(outgoing_, incoming_);

    starts_.assign(index(size()), 0);
    each_other_node([&](int b) {
      if (messages_[index(b)].bytes > 0) find_parts(b);
    });
    for (const Incoming& message : incoming)
      if (!is_here(message.rank)) {
        copy(arrived_.data() + starts_[index(message.rank)], message.bytes, message.data);
        starts_[index(message.rank)] += message.bytes;
      }
  }
  /// Reads the sizes at the beginning of the message from node b, checks them, and stores where the bytes of each rank
  /// of node b begin.
  void find_parts(int b) {
    const std::byte* const message = arrived_.data() + messages_[index(b)].first;
    std::size_t start = messages_[index(b)].first + header();
    for (int i = 0; i < node_; ++i) {
      Size sent = 0;
      std::memcpy(&sent, message + index(i) * sizeof sent, sizeof sent);
      const Size expected = expected_[index(at(b, i))];
      if (sent != expected)
        throw DeviceError("Hierarchical.exchange: rank " + std::to_string(at(b, i)) + " sends " + std::to_string(sent) +
                          " bytes, expected " + std::to_string(expected));
      starts_[index(at(b, i))] = start;
      start += sent;
    }
  }

  std::size_t header() const { return index(node_) * sizeof(Size); }
  static void copy(const std::byte* from, std::size_t bytes, std::byte* to) {
    if (bytes > 0) std::memcpy(to, from, bytes);
  }

  /// Position and size of one message in a buffer with all messages.
  struct Part {
    std::size_t first = 0, bytes = 0;
  };

  W& world_;
  const int node_;
  bool begun_ = false;  // true between begin() and finish() of an exchange
  std::span<const Outgoing> begun_out_{};
  std::span<const Incoming> begun_in_{};
  std::vector<Outgoing> outgoing_{};
  std::vector<Incoming> incoming_{};
  std::vector<Size> told_{}, sizes_{}, expected_{};  // numbers of bytes: told_, sizes_ [place, node], expected_ [rank]
  std::vector<std::size_t> starts_{}, next_{};       // [rank] positions of each rank's bytes in packed_ or arrived_
  std::vector<Part> messages_{};                     // [node]
  std::vector<std::byte> packed_{}, forwarded_{}, arrived_{};
};

}  // namespace gatefold::dist
