#include "gatefold/distributed/mpi_status.hpp"

#include <doctest/doctest.h>

#include <optional>
#include <string>

#include "gatefold/distributed/processes.hpp"
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

using dist::mpi::Notices;

TEST_CASE("Notices: rank and reason of failure reach each rank once") {
  support::Communicator world;
  Notices notices(world.comm);
  CHECK_FALSE(notices.received());
  MPI_Barrier(world.comm);
  const std::string sentence = "no memory" + std::string(5000, '!');
  if (world.rank == 0) notices.send(sentence);
  std::optional<std::string> got;
  const bool told = dist::wait_until(dist::Seconds(world.rank == 0 ? 0 : 20), [&] {
    got = notices.received();
    return got.has_value();
  });
  CHECK(told == (world.rank != 0));
  if (told) CHECK(*got == "rank 0: " + sentence.substr(0, 1000));
  MPI_Barrier(world.comm);
  CHECK_FALSE(notices.received());
}
