#include "gatefold/distributed/mpi_progress.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <exception>
#include <string>
#include <vector>

#include "support/messages.hpp"
#include "support/mpi_started.hpp"

using namespace gatefold;
using dist::Incoming;
using dist::Outgoing;
using dist::Seconds;
using dist::mpi::Progress;
using dist::mpi::Transfers;

namespace {

/// Returns whether transfers complete although only the progress thread asks MPI about them.
bool arrives(Progress& progress, const Transfers& transfers) {
  return dist::wait_until(Seconds(20), [&] {
    const auto alone = progress.pause();
    return transfers.complete();
  });
}

}  // namespace

TEST_CASE("Progress: an empty exchange completes, stopping ends pending ones") {
  support::Communicator world;
  Transfers transfers(world.comm);
  Progress progress(transfers), idle(transfers);
  for (int round = 0; round < 3; ++round) {
    transfers.begin({}, {});
    progress.start();
    CHECK(arrives(progress, transfers));
    CHECK(progress.stop() == nullptr);
  }
}

TEST_CASE("Progress: messages arrive without other calls of MPI") {
  support::Communicator world;
  if (world.size == 1) return;
  Transfers transfers(world.comm, 10000);
  Progress progress(transfers);
  const int next = (world.rank + 1) % world.size, last = (world.rank + world.size - 1) % world.size;
  for (int round = 0; round < 10; ++round) {
    std::vector<std::byte> sent(100000), got(sent.size());
    for (std::size_t i = 0; i < sent.size(); ++i) sent[i] = support::Letter{world.rank, next, round, 0}.at(i);
    const Outgoing outgoing[] = {{next, sent.data(), sent.size()}};
    const Incoming incoming[] = {{last, got.data(), got.size()}};
    transfers.begin(outgoing, incoming);
    progress.start();
    CHECK(arrives(progress, transfers));
    CHECK(progress.stop() == nullptr);
    bool right = true;
    for (std::size_t i = 0; i < got.size(); ++i)
      right = right && got[i] == support::Letter{last, world.rank, round, 0}.at(i);
    CHECK(right);
  }
}

TEST_CASE("Progress: an error is passed once to the stopping thread") {
  support::Communicator world;
  if (world.size == 1) return;
  Transfers transfers(world.comm);
  Progress progress(transfers);
  std::vector<std::byte> bytes(16);
  if (world.rank == 0) {
    const Outgoing outgoing[] = {{1, bytes.data(), 4}};
    transfers.begin(outgoing, {});
    progress.start();
    CHECK(arrives(progress, transfers));
    CHECK(progress.stop() == nullptr);
  } else if (world.rank == 1) {
    const Incoming incoming[] = {{0, bytes.data(), 8}};
    transfers.begin({}, incoming);
    progress.start();
    std::string sentence;
    const bool failed = dist::wait_until(Seconds(20), [&] {
      if (const auto failure = progress.stop()) {
        try {
          std::rethrow_exception(failure);
        } catch (const DeviceError& error) {
          sentence = error.what();
        }
        return true;
      }
      progress.start();
      return false;
    });
    CHECK(failed);
    CHECK(sentence.find("rank 0 sent 4 bytes, but 8 bytes were expected") != std::string::npos);
    CHECK(progress.stop() == nullptr);
  }
  CHECK(transfers.abandon(Seconds(1)));
}
