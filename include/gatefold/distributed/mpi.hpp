#pragma once

#include <exception>
#include <mutex>
#include <optional>
#include <span>
#include <sstream>
#include <string>

#include "gatefold/distributed/mpi_transfers.hpp"

namespace gatefold::dist {

/// Options for waiting in dist::Mpi, a connection of MPI processes.
struct MpiOptions {
  double timeout = 300;  // exchange throws if no message has arrived or been sent for this number of seconds
  /// If true, a thread calls MPI every 50 µs between begin and finish, so that messages advance while the process
  /// computes. The thread needs a free processor.
  bool progress = false;
};

/// A world (connection between processes) of the processes that mpirun or srun has started.
///
///     dist::Mpi world;
///     try {
///       ...                            // dist::run(world, shards, program)
///     } catch (const std::exception& error) {
///       world.fail(error.what());      // the other ranks stop waiting
///       std::cerr << error.what();     // before ~Mpi, because the launcher ends this rank when another one returns
///       return 1;
///     }
///
/// All processes construct it together. It starts and ends MPI, unless the program does so. It uses a separate
/// communicator, so its messages never mix with the messages of the program. Any thread can call it, but only one at a
/// time.
///
/// If a rank fails, it sends its error message to the other ranks, whose exchange then throws
/// `DeviceError{"rank 2: message"}`. If a rank is killed, the launcher detects this and ends the other ranks. If a rank
/// hangs or has left early, exchange throws after the timeout and names the rank. After a failure of any rank, the
/// world refuses further exchanges.
///
/// The destructor waits for the destructors of the other ranks. After a failure, it waits for at most 5 seconds, so
/// that the other ranks can report the failure; otherwise it waits for at most the timeout plus 5 seconds. If a rank is
/// still missing then, the destructor ends all processes (MPI_Abort). If an exception destroys the world, this rank
/// counts as failed.
class Mpi {
 public:
  /// Connects to the other processes, and starts MPI unless the program has started it.
  /// @throws ArgumentError unless timeout > 0
  /// @throws DeviceError if MPI has ended before, or does not support calls from several threads, one at a time
  ///         (MPI_THREAD_SERIALIZED)
  explicit Mpi(MpiOptions options = {})
      : timeout_(checked(options.timeout)), started_(start()), comm_(duplicate()), notices_(comm_), transfers_(comm_) {
    mpi::expect_success(MPI_Comm_rank(comm_, &rank_), "MPI_Comm_rank");
    mpi::expect_success(MPI_Comm_size(comm_, &size_), "MPI_Comm_size");
    if (options.progress && size_ > 1) progress_.emplace(transfers_);
  }
  Mpi(const Mpi&) = delete;
  Mpi& operator=(const Mpi&) = delete;

  ~Mpi() {
    int ended = 0;
    MPI_Finalized(&ended);
    if (ended) return;
    if (progress_) progress_->stop();
    if (std::uncaught_exceptions() > exceptions_) fail("ended by an exception");
    if (!all_leave()) MPI_Abort(comm_, 1);
    if (!failed_) MPI_Comm_free(&comm_);
    if (started_) MPI_Finalize();
  }

  int rank() const { return rank_; }
  int size() const { return size_; }

  /// Delivers messages between processes. No MPI call blocks: the function polls for messages and failures in turn.
  ///
  /// @param outgoing  in   messages to other ranks. Messages from one rank to another arrive in the order of this list
  /// @param incoming  out  memory for messages from other ranks, of the sizes that these ranks send
  /// @throws ArgumentError if a rank is this rank or does not exist; then no message is sent
  /// @throws DeviceError if a rank has failed or has sent a different size than expected, or if no message of this rank
  ///         has arrived or been sent for longer than the timeout. The error is reported to the other ranks. The
  ///         contents of `incoming` are then unspecified, and are not written later
  /// @cost   no allocation after a first call with as many messages, except by MPI
  void exchange(std::span<const Outgoing> outgoing, std::span<const Incoming> incoming) {
    begin(outgoing, incoming);
    finish();
  }
  /// Starts an exchange of messages; this process can compute until it calls finish(). The messages are delivered when
  /// finish() returns. Until then no other exchange can start, and the memory of the messages must stay valid. If your
  /// code throws an exception before it calls finish(), the memory must stay valid until fail() or the destructor has
  /// cancelled the messages. With the option `progress`, another thread calls MPI between begin and finish. A program
  /// that itself calls MPI in this time needs MPI_THREAD_MULTIPLE.
  /// @throws the errors of exchange; ArgumentError if another exchange has not finished
  void begin(std::span<const Outgoing> outgoing, std::span<const Incoming> incoming) {
    for (const Outgoing& message : outgoing) expect_other(message.rank, "outgoing");
    for (const Incoming& message : incoming) expect_other(message.rank, "incoming");
    if (failed_) throw DeviceError(sentence_);
    expect(!begun_, "Mpi.begin", "exchange", "the previous exchange to be finished", "one in progress");
    or_fail(*this, [&] {
      look_for_failures();  // first, because a failed rank may have freed the memory of its messages
      transfers_.begin(outgoing, incoming);
      begun_ = true;
      if (progress_) progress_->start();
    });
  }
  void finish() {
    if (failed_) throw DeviceError(sentence_);
    or_fail(*this, [&] {
      if (progress_)
        if (const auto failure = progress_->stop()) std::rethrow_exception(failure);
      while (!transfers_.complete()) {
        const bool moved = wait_until(timeout_, [&] {
          look_for_failures();
          return transfers_.take();
        });
        if (!moved) throw_late();
      }
      begun_ = false;
      look_for_failures();
    });
  }

  /// Throws DeviceError if this or another rank has reported a failure. Does not wait for messages.
  void listen() {
    if (failed_) throw DeviceError(sentence_);
    const auto alone = pause_progress();
    look_for_failures();
  }

  /// Reports to the other ranks that this rank has failed, and the reason. Only the first call sends a report, and only
  /// if no other rank has reported a failure before. If an exchange has begun, cancels its messages, which takes up to
  /// half a second.
  /// @param sentence  the reason; up to 1000 bytes of it are sent
  void fail(const std::string& sentence) noexcept {
    if (progress_) progress_->stop();
    if (!failed_) {
      failed_ = true;
      try {
        sentence_ = sentence;
        notices_.send(sentence);
      } catch (...) {  // if the report cannot be sent, the other ranks throw after the timeout
      }
    }
    if (!transfers_.complete()) settled_ = transfers_.abandon(Seconds(0.5));
  }

 private:
  static Seconds checked(double timeout) {
    expect(timeout > 0, "Mpi", "timeout", "more than 0 seconds", timeout);
    return Seconds(timeout);
  }
  // Starts MPI unless the program has started it. Returns whether this class has started it.
  static bool start() {
    int begun = 0, ended = 0, threads = MPI_THREAD_SINGLE;
    mpi::expect_success(MPI_Initialized(&begun), "MPI_Initialized");
    mpi::expect_success(MPI_Finalized(&ended), "MPI_Finalized");
    if (ended) throw DeviceError("Mpi: MPI_Finalize was called before, and a process can start MPI only once");
    if (begun)
      mpi::expect_success(MPI_Query_thread(&threads), "MPI_Query_thread");
    else
      threads = mpi::start();
    if (threads < MPI_THREAD_SERIALIZED)
      throw DeviceError(
          "Mpi: MPI_Init_thread: MPI_THREAD_SERIALIZED is needed, but was not requested or this MPI library does not "
          "provide it");
    return !begun;
  }
  static MPI_Comm duplicate() {
    MPI_Comm comm = MPI_COMM_NULL;
    mpi::expect_success(MPI_Comm_dup(MPI_COMM_WORLD, &comm), "MPI_Comm_dup");
    mpi::expect_success(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    return comm;
  }

  std::unique_lock<std::mutex> pause_progress() {
    return progress_ ? progress_->pause() : std::unique_lock<std::mutex>{};
  }
  void expect_other(int rank, const char* list) const {
    expect(rank >= 0 && rank < size_ && rank != rank_, "Mpi.exchange", list,
           Joined{"a rank in [0, ", size_, ") other than ", rank_}, rank);
  }
  void look_for_failures() {
    if (auto sentence = notices_.received()) {
      failed_ = true;
      sentence_ = *sentence;
      throw DeviceError(sentence_);
    }
  }
  [[noreturn]] void throw_late() const {
    std::ostringstream sentence = message_stream();
    sentence << "Mpi.exchange: " << transfers_.missing() << " within " << timeout_.count()
             << " s (that rank may itself be waiting)";
    throw DeviceError(sentence.str());
  }
  // Waits until all ranks have called the destructor of this class, up to a time limit. Returns true if all ranks have.
  // If MPI may still write into messages, does not call MPI and returns false after the time limit.
  bool all_leave() {
    MPI_Request request = MPI_REQUEST_NULL;
    bool possible = settled_ && MPI_Ibarrier(comm_, &request) == MPI_SUCCESS;
    return wait_until(failed_ ? to_report : timeout_ + to_report, [&] {
      int all = 0;
      if (possible) possible = MPI_Test(&request, &all, MPI_STATUS_IGNORE) == MPI_SUCCESS;
      return possible && all;
    });
  }

  static constexpr Seconds to_report{5};  // how long other ranks may need to report a failure

  Seconds timeout_;
  bool started_;
  MPI_Comm comm_;
  int rank_ = 0, size_ = 1;
  bool begun_ = false;    // true between begin() and finish() of an exchange
  bool failed_ = false;   // whether this or another rank has failed
  std::string sentence_;  // the reason of the failure
  bool settled_ = true;   // false if MPI may still write into the memory of callers
  int exceptions_ = std::uncaught_exceptions();
  mpi::Notices notices_;
  mpi::Transfers transfers_;
  std::optional<mpi::Progress> progress_;
};

}  // namespace gatefold::dist
