#include "gatefold/distributed/mpi_status.hpp"

#include <doctest/doctest.h>

#include <string>

#include "support/mpi_started.hpp"

using namespace gatefold;

TEST_CASE("expect_success: a failed call throws its name and MPI's message") {
  support::Communicator world;
  int number = 0;
  const int status = MPI_Send(&number, 1, MPI_INT, world.size, 0, world.comm);  // there is no such rank
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(status, text, &length);
  REQUIRE(length > 0);
  std::string sentence;
  try {
    dist::mpi::expect_success(status, "MPI_Send");
  } catch (const DeviceError& error) {
    sentence = error.what();
  }
  CHECK(sentence == "MPI_Send: " + std::string(text, std::size_t(length)));
  dist::mpi::expect_success(MPI_SUCCESS, "MPI_Send");
}
