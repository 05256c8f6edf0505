#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "gatefold/core/error.hpp"
#include "gatefold/core/philox.hpp"
#include "gatefold/distributed/processes.hpp"

namespace gatefold::detail_::device {
class NcclCommunicator;  // defined in backend/cuda/nccl.cuh
}

namespace gatefold::dist {

/// Options for waiting in dist::Nccl, a connection of processes by NCCL.
struct NcclOptions {
  double timeout = 300;  // seconds after which an exchange throws if NCCL has not finished it
};

/// A world (connection between processes) of processes with one device each. They exchange data on these devices with
/// NCCL.
///
///     dist::Mpi processes;
///     cudaSetDevice(…);                      // a different device in each process of a machine
///     dist::Nccl world{processes};
///     dist::run(world, shards, program);     // the contexts of `program` are on that device
///
/// All processes construct it together, on an inner world (for example MPI) that must outlive it. Data on the host goes
/// through the inner world. Before each exchange between devices, the ranks exchange the sizes of their messages
/// through the inner world. The inner world therefore detects a rank that has failed, is late or runs a different
/// program, and NCCL transfers only bytes that all ranks agree on. If NCCL reports an error or does not finish within
/// the timeout, the rank reports the error to the other ranks, aborts its communicator and throws. After a failure of
/// any rank, the world refuses further exchanges.
/// @tparam CommunicatorT  a communicator of NCCL; backend/cuda/nccl.cuh documents its functions
template <World W, class CommunicatorT = detail_::device::NcclCommunicator>
class Nccl {
 public:
  /// Connects all ranks by NCCL.
  /// @throws ArgumentError unless timeout > 0; DeviceError if NCCL does not connect all ranks
  explicit Nccl(W& world, NcclOptions options = {}) : world_(world), timeout_(options.timeout) {
    expect(options.timeout > 0, "Nccl", "timeout", "more than 0 seconds", options.timeout);
    if (size() == 1) return;
    or_fail(*this, [&] {
      typename CommunicatorT::Id id{};
      if (rank() == 0) id = CommunicatorT::make_id();
      share(id);
      comm_.emplace(id, rank(), size());
      agree({}, {});  // returns when all ranks are present
      wait("connected the ranks");
    });
  }
  Nccl(const Nccl&) = delete;
  Nccl& operator=(const Nccl&) = delete;
  ~Nccl() {
    if (!comm_ || failed_) return;
    if (std::uncaught_exceptions() > exceptions_) {
      fail("ended by an exception");
      return;
    }
    try {
      comm_->finalize();
      wait("ended");
      comm_->destroy();
    } catch (const std::exception&) {  // the destructor must not throw
    }
  }

  int rank() const { return world_.rank(); }
  int size() const { return world_.size(); }

  /// Exchanges messages in host memory, through the inner world.
  void exchange(std::span<const Outgoing> outgoing, std::span<const Incoming> incoming) {
    world_.exchange(outgoing, incoming);
  }
  void begin(std::span<const Outgoing> outgoing, std::span<const Incoming> incoming) requires StartingWorld<W> {
    world_.begin(outgoing, incoming);
  }
  void finish() requires StartingWorld<W> { world_.finish(); }
  /// Delivers messages between devices. The data must be complete when the function is called, and has arrived when it
  /// returns.
  /// @throws ArgumentError if a message is not in memory of the device on which this world was created; DeviceError if
  ///         a rank has failed, runs a different program or is late, or if NCCL reports an error
  void exchange_on_device(std::span<const Outgoing> outgoing, std::span<const Incoming> incoming) {
    if (failed_) throw DeviceError(sentence_);
    or_fail(*this, [&] {
      agree(outgoing, incoming);
      comm_->begin(outgoing, incoming);
      wait("delivered all messages");
    });
  }
  void fail(const std::string& sentence) noexcept {
    if (failed_) return;
    failed_ = true;
    try {
      sentence_ = sentence;
    } catch (...) {  // no memory to copy the reason; the failure is reported anyway
    }
    world_.fail(sentence);  // before abort, so that a rank that sees NCCL's error can read the reason
    if (comm_) comm_->abort();
  }

 private:
  /// A summary of the messages from one rank to another: their number, their total bytes, and a hash of their sizes.
  struct Sizes {
    std::uint64_t messages = 0, bytes = 0, of_each = 0;
    void add(std::size_t size) {
      ++messages;
      bytes += size;
      of_each = mix64(of_each ^ size);
    }
    bool operator==(const Sizes&) const = default;
  };

  /// Broadcast: sends the value on rank 0 to all ranks.
  template <class T>
  void share(T& value) {
    auto* const bytes = reinterpret_cast<std::byte*>(&value);
    std::vector<Outgoing> outgoing;
    std::vector<Incoming> incoming;
    if (rank() > 0) incoming.push_back({0, bytes, sizeof value});
    for (int r = 1; rank() == 0 && r < size(); ++r) outgoing.push_back({r, bytes, sizeof value});
    world_.exchange(outgoing, incoming);
  }
  void agree(std::span<const Outgoing> outgoing, std::span<const Incoming> incoming) {
    const auto ranks = static_cast<std::size_t>(size());
    std::vector<Sizes> mine(ranks), expected(ranks);
    for (const Outgoing& m : outgoing) mine[static_cast<std::size_t>(m.rank)].add(m.bytes);
    for (const Incoming& m : incoming) expected[static_cast<std::size_t>(m.rank)].add(m.bytes);
    const std::vector<Sizes> theirs = exchange_values(world_, mine);
    for (std::size_t r = 0; r < ranks; ++r)
      if (static_cast<int>(r) != rank() && theirs[r] != expected[r])
        throw DeviceError("Nccl.exchange: rank " + std::to_string(r) + " sends " + text(theirs[r]) + ", but " +
                          text(expected[r]) + " were expected: the ranks do not run the same program");
  }
  static std::string text(const Sizes& sizes) {
    return std::to_string(sizes.messages) + " messages of " + std::to_string(sizes.bytes) + " bytes";
  }
  /// Returns whether NCCL has finished the operation that was started. Throws DeviceError if a rank has failed.
  bool done() {
    listen();
    try {
      return comm_->done();
    } catch (const DeviceError&) {
      listen();
      throw;
    }
  }
  /// If another rank has failed, throws an exception with its message. Has no effect if the inner world has no function
  /// to report failures between exchanges.
  void listen() {
    if constexpr (requires { world_.listen(); }) world_.listen();
  }
  void wait(const char* what) {
    if (wait_until(timeout_, [&] { return done(); })) return;
    std::ostringstream sentence = message_stream();
    sentence << "Nccl: NCCL has not " << what << " within " << timeout_.count() << " s";
    throw DeviceError(sentence.str());
  }

  W& world_;
  Seconds timeout_;
  bool failed_ = false;   // whether this or another rank has failed
  std::string sentence_;  // the reason of the failure
  int exceptions_ = std::uncaught_exceptions();
  std::optional<CommunicatorT> comm_;
};
template <class W>
Nccl(W&) -> Nccl<W>;
template <class W>
Nccl(W&, NcclOptions) -> Nccl<W>;

}  // namespace gatefold::dist
