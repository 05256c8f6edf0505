#pragma once

#include <cstddef>
#include <optional>

// Use only the C functions of MPI. Its C++ classes would have to be linked, and were removed from the standard in 2012.
#ifndef OMPI_SKIP_MPICXX
#define OMPI_SKIP_MPICXX 1
#endif
#ifndef MPICH_SKIP_MPICXX
#define MPICH_SKIP_MPICXX 1
#endif
#include <mpi.h>

#include <string>

#include "gatefold/core/error.hpp"

namespace gatefold::dist::mpi {

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
