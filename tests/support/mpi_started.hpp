#pragma once

#include "gatefold/distributed/mpi_transfers.hpp"

namespace gatefold::support {

/// Starts MPI once for all test cases, because a process can start it only once.
inline void start_mpi() {
  struct Started {
    Started() { dist::mpi::start(); }
    Started(const Started&) = delete;
    Started& operator=(const Started&) = delete;
    ~Started() { MPI_Finalize(); }
  };
  static Started started;
}

/// A separate communicator for a test. MPI returns its errors instead of ending the program.
struct Communicator {
  MPI_Comm comm = MPI_COMM_NULL;
  int rank = 0, size = 1;
  Communicator() {
    start_mpi();
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
  }
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  ~Communicator() {
    MPI_Barrier(comm);
    MPI_Comm_free(&comm);
  }
};

}  // namespace gatefold::support
