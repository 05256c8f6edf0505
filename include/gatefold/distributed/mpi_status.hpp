#pragma once

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

}  // namespace gatefold::dist::mpi
