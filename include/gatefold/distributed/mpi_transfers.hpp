#pragma once

// Use only the C functions of MPI. Its C++ classes would have to be linked, and were removed from the standard in 2012.
#ifndef OMPI_SKIP_MPICXX
#define OMPI_SKIP_MPICXX 1
#endif
#ifndef MPICH_SKIP_MPICXX
#define MPICH_SKIP_MPICXX 1
#endif
#include <mpi.h>

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gatefold/core/error.hpp"
#include "gatefold/distributed/processes.hpp"

namespace gatefold::dist::mpi {

inline void expect_success(int status, const char* call);

/// The messages of one MPI exchange while they are transferred. MPI counts in int, so long messages are sent in pieces.
/// The last piece of a message is shorter than the others, possibly 0 bytes, to mark the end of the message.
class Transfers {
 public:
  static constexpr int tag = 0;

  explicit Transfers(MPI_Comm comm, std::size_t piece = std::size_t{1} << 30) : comm_(comm), piece_(piece) {}

  /// Starts the sends and receives of an exchange. Earlier exchanges must be complete or abandoned. Receives are posted
  /// before sends, so that a message that arrives has a matching receive.
  void begin(std::span<const Outgoing> outgoing, std::span<const Incoming> incoming) {
    complete_ = false;
    pieces_.clear();
    indices_.clear();
    statuses_.clear();
    requests_.clear();
    for (const Incoming& message : incoming)
      for_each_piece(message, [&](std::byte* data, int bytes) {
        pieces_.push_back({message.rank, bytes, true});
        expect_success(MPI_Irecv(data, bytes, MPI_BYTE, message.rank, tag, comm_, next()), "MPI_Irecv");
      });
    for (const Outgoing& message : outgoing)
      for_each_piece(message, [&](const std::byte* data, int bytes) {
        pieces_.push_back({message.rank, bytes, false});
        expect_success(MPI_Isend(data, bytes, MPI_BYTE, message.rank, tag, comm_, next()), "MPI_Isend");
      });
    complete_ = requests_.empty();
  }

  /// Completes the pieces of messages that have arrived or have been sent, and checks the sizes of the received pieces.
  /// Does not wait.
  /// @return true if there were such pieces, or if all messages were already complete
  /// @throws DeviceError if a rank has sent a different size than expected
  bool take() {
    int taken = 0;
    const int result = MPI_Testsome(int(requests_.size()), requests_.data(), &taken, indices_.data(), statuses_.data());
    if (result != MPI_ERR_IN_STATUS) expect_success(result, "MPI_Testsome");
    if (taken == MPI_UNDEFINED) return complete_ = true;
    for (std::size_t i = 0; i < static_cast<std::size_t>(taken); ++i) {
      const auto& piece = pieces_[static_cast<std::size_t>(indices_[i])];
      if (result == MPI_ERR_IN_STATUS) expect_received(piece, statuses_[i].MPI_ERROR);
      expect_size(piece, statuses_[i]);
    }
    return taken > 0;
  }

  /// Returns whether all messages are delivered or cancelled.
  bool complete() const { return complete_; }

  /// Returns, for an error message, the ranks that this exchange waits for, for example `nothing from rank 1, 3`. If
  /// all messages to this rank have arrived, lists the ranks that have not received their messages from this rank:
  /// `nothing received by rank 2`.
  std::string missing() const {
    std::set<int> from, to;
    for (std::size_t i = 0; i < requests_.size(); ++i)
      if (requests_[i] != MPI_REQUEST_NULL) (pieces_[i].incoming ? from : to).insert(pieces_[i].rank);
    std::string text = from.empty() ? "nothing received by rank " : "nothing from rank ", comma;
    for (const int rank : from.empty() ? to : from) {
      text += comma + std::to_string(rank);
      comma = ", ";
    }
    return text;
  }

  /// Ends the exchange after a failure: cancels its receives, waits up to `limit` until all transfers are complete, and
  /// frees the remaining requests. If only one side has started a transfer (the send or the receive), MPI never
  /// accesses the memory of its message again once all ranks have called abandon.
  /// @return true if MPI will not write into the memory of the messages any more
  bool abandon(Seconds limit) noexcept {
    for (std::size_t i = 0; i < requests_.size(); ++i)
      if (pieces_[i].incoming && requests_[i] != MPI_REQUEST_NULL) MPI_Cancel(&requests_[i]);
    wait_until(limit, [&] {
      int taken = 0;
      MPI_Testsome(int(requests_.size()), requests_.data(), &taken, indices_.data(), MPI_STATUSES_IGNORE);
      return taken == MPI_UNDEFINED;
    });
    bool settled = true;
    for (std::size_t i = 0; i < requests_.size(); ++i) {
      if (requests_[i] == MPI_REQUEST_NULL) continue;
      settled = settled && !pieces_[i].incoming;
      MPI_Request_free(&requests_[i]);
    }
    complete_ = true;
    return settled;
  }

 private:
  struct Piece {
    int rank;
    int bytes;
    bool incoming;
  };

  template <class Message, class F>
  void for_each_piece(const Message& message, F f) const {
    std::size_t at = 0;
    for (; message.bytes - at >= piece_; at += piece_) f(message.data + at, int(piece_));
    f(message.data + at, int(message.bytes - at));
  }

  MPI_Request* next() {
    indices_.emplace_back();
    statuses_.emplace_back();
    requests_.push_back(MPI_REQUEST_NULL);  // last, so that requests_ is never longer than the other lists
    return &requests_.back();
  }

  [[noreturn]] static void throw_other_size(const Piece& piece, const std::string& sent) {
    throw DeviceError("Mpi.exchange: rank " + std::to_string(piece.rank) + " sent " + sent + ", but " +
                      std::to_string(piece.bytes) + " bytes were expected: the ranks do not run the same program");
  }
  static void expect_received(const Piece& piece, int error) {
    int kind = MPI_SUCCESS;
    if (error != MPI_SUCCESS) MPI_Error_class(error, &kind);
    if (kind == MPI_ERR_TRUNCATE) throw_other_size(piece, "more bytes");  // MPI does not report the number of bytes
    expect_success(error, piece.incoming ? "MPI_Irecv" : "MPI_Isend");
  }
  static void expect_size(const Piece& piece, const MPI_Status& status) {
    if (!piece.incoming) return;
    int bytes = 0;
    expect_success(MPI_Get_count(&status, MPI_BYTE, &bytes), "MPI_Get_count");
    if (bytes != piece.bytes) throw_other_size(piece, std::to_string(bytes) + " bytes");
  }

  MPI_Comm comm_;
  std::size_t piece_;
  bool complete_ = true;
  std::vector<MPI_Request> requests_;
  std::vector<Piece> pieces_;         // for each request, the piece that it transfers
  std::vector<int> indices_;          // results of MPI_Testsome
  std::vector<MPI_Status> statuses_;  // results of MPI_Testsome
};

/// A thread that calls MPI while the process computes, so that the messages of an exchange advance. MPI libraries
/// transfer few bytes unless the program calls them. Between start and stop, other threads may call MPI only while they
/// hold the lock of pause().
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
  /// Makes the thread stop calling MPI, and waits until its present call has returned.
  /// @return the exception that was thrown on the thread since start(), if any
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

/// Checks the status that an MPI call has returned.
/// @throws DeviceError with the name of the call and MPI's message, unless the status is MPI_SUCCESS
inline void expect_success(int status, const char* call) {
  if (status == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(status, text, &length);
  throw DeviceError(std::string(call) + ": " + text);
}

/// Starts MPI with support for several threads that call it one at a time. Sets MPI to return errors instead of ending
/// the process, also for calls without a communicator.
/// @return the level of thread support
/// @throws DeviceError if MPI does not start
inline int start() {
  int threads = MPI_THREAD_SINGLE;
  expect_success(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &threads), "MPI_Init_thread");
  for (const MPI_Comm comm : {MPI_COMM_WORLD, MPI_COMM_SELF})
    expect_success(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  return threads;
}

/// Short texts by which MPI processes report failures to each other, with a separate message tag. They are so short
/// that MPI sends them completely even before the other side receives them.
class Notices {
 public:
  static constexpr int tag = 1;
  static constexpr std::size_t longest = 1000;  // bytes

  explicit Notices(MPI_Comm comm) : comm_(comm) {}

  /// Sends the report of a failure to all other processes, without waiting for them. Call it only once, because the
  /// text must not change while MPI sends it.
  /// @throws DeviceError if MPI returns an error
  void send(const std::string& sentence) {
    text_ = sentence.substr(0, longest);
    int size = 0, self = 0;
    expect_success(MPI_Comm_size(comm_, &size), "MPI_Comm_size");
    expect_success(MPI_Comm_rank(comm_, &self), "MPI_Comm_rank");
    for (int rank = 0; rank < size; ++rank) {
      if (rank == self) continue;
      MPI_Request request;
      expect_success(MPI_Isend(text_.data(), int(text_.size()), MPI_CHAR, rank, tag, comm_, &request), "MPI_Isend");
      expect_success(MPI_Request_free(&request), "MPI_Request_free");
    }
  }

  /// Returns a failure report of another process if one has arrived, for example `rank 2: reason`. Does not wait.
  std::optional<std::string> received() {
    int there = 0, length = 0;
    MPI_Status status;
    expect_success(MPI_Iprobe(MPI_ANY_SOURCE, tag, comm_, &there, &status), "MPI_Iprobe");
    if (!there) return std::nullopt;
    expect_success(MPI_Get_count(&status, MPI_CHAR, &length), "MPI_Get_count");
    std::string text(std::size_t(length), ' ');
    expect_success(MPI_Recv(text.data(), length, MPI_CHAR, status.MPI_SOURCE, tag, comm_, MPI_STATUS_IGNORE),
                   "MPI_Recv");  // the report has arrived, so this does not block
    return "rank " + std::to_string(status.MPI_SOURCE) + ": " + text;
  }

 private:
  MPI_Comm comm_;
  std::string text_;
};

}  // namespace gatefold::dist::mpi
