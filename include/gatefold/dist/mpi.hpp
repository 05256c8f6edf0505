#pragma once

#include <exception>
#include <mutex>
#include <optional>
#include <span>
#include <sstream>
#include <string>

#include "gatefold/core/error.hpp"
#include "gatefold/dist/mpi_notices.hpp"
#include "gatefold/dist/mpi_progress.hpp"
#include "gatefold/dist/mpi_status.hpp"
#include "gatefold/dist/mpi_transfers.hpp"
#include "gatefold/dist/wait.hpp"
#include "gatefold/dist/world.hpp"

namespace gatefold::dist {

/// How a world of MPI's processes waits.
struct MpiOptions {
  double timeout = 300;   // seconds without any message after which a rank that owes one ends the run
  bool progress = false;  // between begin and finish a thread asks MPI, every 50 µs: for a processor that is free
};

/// The processes that mpirun (or srun) started, as a world.
///
///     dist::Mpi world;
///     try {
///       ...                            // dist::run(world, shards, program)
///     } catch (const std::exception& error) {
///       world.fail(error.what());      // the others stop waiting
///       std::cerr << error.what();     // while the world lives: the launcher ends the rest when one rank returns
///       return 1;
///     }
///
/// Built by all processes together. It starts MPI, and ends it, unless the program has; it has a communicator of its
/// own, so that the program's messages and its own do not meet. Calls may come from any thread, from one at a time.
///
/// A rank that fails tells the others, which throw `DeviceError{"rank 2: its sentence"}` from their exchange. A rank
/// that is killed is the launcher's to find, which ends the others. One that stands still, or has left early, makes
/// exchange throw after the timeout and name it. Having failed, here or there, a world exchanges nothing more.
///
/// The destructor waits for those of the other ranks: after a failure for 5 seconds, in which they may report, else for
/// 5 seconds more than the timeout. It ends all processes (MPI_Abort) if one is missing then. A world that an exception
/// destroys has failed.
class Mpi {
 public:
  /// @throws ArgumentError unless timeout > 0
  /// @throws DeviceError if MPI has ended before, or does not let threads take turns (MPI_THREAD_SERIALIZED)
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

  /// Deliver messages between processes. No call of MPI waits: it asks in turn for messages and for failures.
  ///
  /// @param outgoing  in   to other ranks; the messages from one rank to another in the order in which they are listed
  /// @param incoming  out  from other ranks, of the sizes that these send
  /// @throws ArgumentError if a rank is none of the others; nothing is sent
  /// @throws DeviceError when a rank has failed, sent another size than is expected, or owes its message for longer
  ///         than the timeout; the others are told. What stands in `incoming` is unspecified; nothing is written there
  ///         later
  /// @cost   no allocation after a first call of as many messages, but MPI's own
  void exchange(std::span<const Outgoing> outgoing, std::span<const Incoming> incoming) {
    begin(outgoing, incoming);
    finish();
  }
  /// Its first half: messages set out, and this process may compute. They are delivered when finish() returns; until
  /// then nothing else is exchanged, and what they lie in stays: while an exception passes too, until fail() or the end
  /// of the world has given them up. With the option `progress` another thread calls MPI meanwhile: a program that does
  /// so itself needs MPI_THREAD_MULTIPLE then.
  /// @throws as exchange, and ArgumentError if another exchange has not finished
  void begin(std::span<const Outgoing> outgoing, std::span<const Incoming> incoming) {
    for (const Outgoing& message : outgoing) expect_other(message.rank, "outgoing");
    for (const Incoming& message : incoming) expect_other(message.rank, "incoming");
    if (failed_) throw DeviceError(sentence_);
    expect(!begun_, "Mpi.begin", "exchange", "the one before finished", "one under way");
    or_fail(*this, [&] {
      look_for_failures();  // before anything is received from a rank that has let go of what it sent
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

  /// Throws where a rank has failed, as exchange does, if that is known. Waits for nobody.
  void listen() {
    if (failed_) throw DeviceError(sentence_);
    const auto alone = pause_progress();
    look_for_failures();
  }

  /// Tell the other ranks that this one has failed, and why: once, and not what they told. Waits for nobody, but half a
  /// second for messages of an exchange that has begun, which is given up.
  /// @param sentence  up to 1000 bytes of it are sent
  void fail(const std::string& sentence) noexcept {
    if (progress_) progress_->stop();
    if (!failed_) {
      failed_ = true;
      try {
        sentence_ = sentence;
        notices_.send(sentence);
      } catch (...) {  // then they find out by the timeout
      }
    }
    if (!transfers_.complete()) settled_ = transfers_.abandon(Seconds(0.5));
  }

 private:
  static Seconds checked(double timeout) {
    expect(timeout > 0, "Mpi", "timeout", "more than 0 seconds", timeout);
    return Seconds(timeout);
  }
  // Whether it was not the program that started MPI.
  static bool start() {
    int begun = 0, ended = 0, threads = MPI_THREAD_SINGLE;
    mpi::expect_success(MPI_Initialized(&begun), "MPI_Initialized");
    mpi::expect_success(MPI_Finalized(&ended), "MPI_Finalized");
    if (ended) throw DeviceError("Mpi: MPI_Finalize was called before, and MPI starts once in a process");
    if (begun)
      mpi::expect_success(MPI_Query_thread(&threads), "MPI_Query_thread");
    else
      threads = mpi::start();
    if (threads < MPI_THREAD_SERIALIZED)
      throw DeviceError("Mpi: MPI_Init_thread: MPI_THREAD_SERIALIZED is needed, but was not asked for or is not there");
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
           Joined{"another rank below ", size_, " than ", rank_}, rank);
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
    sentence << "Mpi.exchange: " << transfers_.missing() << " within " << timeout_.count() << " s (it may wait itself)";
    throw DeviceError(sentence.str());
  }
  // Whether all ranks are at the end of their world. Asks MPI for nothing while it might still write into messages.
  bool all_leave() {
    MPI_Request request = MPI_REQUEST_NULL;
    bool possible = settled_ && MPI_Ibarrier(comm_, &request) == MPI_SUCCESS;
    return wait_until(failed_ ? to_report : timeout_ + to_report, [&] {
      int all = 0;
      if (possible) possible = MPI_Test(&request, &all, MPI_STATUS_IGNORE) == MPI_SUCCESS;
      return possible && all;
    });
  }

  static constexpr Seconds to_report{5};  // that a rank has, once another has failed

  Seconds timeout_;
  bool started_;
  MPI_Comm comm_;
  int rank_ = 0, size_ = 1;
  bool begun_ = false;    // an exchange, whose messages may have arrived, but which is not finished
  bool failed_ = false;   // here or there
  std::string sentence_;  // why
  bool settled_ = true;   // nothing under way writes into memory of callers
  int exceptions_ = std::uncaught_exceptions();
  mpi::Notices notices_;
  mpi::Transfers transfers_;
  std::optional<mpi::Progress> progress_;
};

}  // namespace gatefold::dist
