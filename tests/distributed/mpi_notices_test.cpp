#include "gatefold/distributed/mpi_notices.hpp"

#include <doctest/doctest.h>

#include <optional>
#include <string>

#include "gatefold/distributed/poll.hpp"
#include "support/mpi_started.hpp"

using namespace gatefold;
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
