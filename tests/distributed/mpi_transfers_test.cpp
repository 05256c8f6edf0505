#include "gatefold/distributed/mpi_transfers.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <exception>
#include <optional>
#include <string>
#include <vector>

#include "support/messages.hpp"
#include "support/mpi_started.hpp"

using namespace gatefold;
using dist::Incoming;
using dist::Outgoing;
using dist::Seconds;
using dist::mpi::Notices;
using dist::mpi::Transfers;

namespace {

void finish(Transfers& transfers) {
  while (!transfers.complete()) {
    const bool moved = dist::wait_until(Seconds(20), [&] { return transfers.take(); });
    REQUIRE(moved);
  }
}
std::string sentence_of(Transfers& transfers) {
  try {
    finish(transfers);
  } catch (const DeviceError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("Transfers: messages of less or more than one piece arrive") {
  support::Communicator world;
  Transfers transfers(world.comm, 100);
  const int next = (world.rank + 1) % world.size, last = (world.rank + world.size - 1) % world.size;
  std::vector<std::byte> sent(100000), got(100000);
  for (std::size_t i = 0; i < sent.size(); ++i) sent[i] = support::Letter{world.rank, next, 0, 0}.at(i);
  for (const std::size_t bytes : {0, 1, 99, 100, 101, 200, 250, 100000}) {
    transfers.begin({}, {});
    CHECK(transfers.complete());
    const Outgoing outgoing[] = {{next, sent.data(), bytes}};
    const Incoming incoming[] = {{last, got.data(), bytes}};
    if (world.size == 1) continue;
    transfers.begin(outgoing, incoming);
    finish(transfers);
    bool right = true;
    for (std::size_t i = 0; i < bytes; ++i) right = right && got[i] == support::Letter{last, world.rank, 0, 0}.at(i);
    CHECK(right);
  }
}

TEST_CASE("Transfers: wrong sizes throw on the receiver, even in pieces") {
  support::Communicator world;
  if (world.size == 1) return;
  std::vector<std::byte> text(300000);
  struct Case {
    std::size_t sent, expected;
    const char* says;
  };
  // Messages travel in pieces of 100,000 bytes. The last piece is shorter, possibly empty, so the receiver sees a wrong
  // total size even if the first pieces have the right size.
  for (const Case& c :
       {Case{4, 8, "sent 4 bytes, but 8 bytes"}, Case{8, 4, "sent more bytes, but 4 bytes"},
        Case{0, 1, "sent 0 bytes, but 1 bytes"}, Case{90000, 8, "sent more bytes, but 8 bytes"},
        Case{100000, 200000, "sent 0 bytes, but 100000 bytes"}, Case{250000, 200000, "sent more bytes, but 0 bytes"}}) {
    CAPTURE(c.sent);
    CAPTURE(c.expected);
    support::Communicator fresh;
    Transfers transfers(fresh.comm, 100000);
    if (world.rank == 0) {
      const Outgoing outgoing[] = {{1, text.data(), c.sent}};
      transfers.begin(outgoing, {});
      dist::wait_until(Seconds(0.2), [&] { return transfers.take() && transfers.complete(); });
    } else if (world.rank == 1) {
      const Incoming incoming[] = {{0, text.data(), c.expected}};
      transfers.begin({}, incoming);
      const std::string sentence = sentence_of(transfers);
      CAPTURE(sentence);
      CHECK(sentence.find("rank 0 " + std::string(c.says)) != std::string::npos);
      CHECK(sentence.find("the ranks do not run the same program") != std::string::npos);
    }
    CHECK(transfers.abandon(Seconds(1)));
  }
}

TEST_CASE("Transfers: names missing messages, leaves abandoned buffers unchanged") {
  support::Communicator world;
  if (world.size < 3) return;
  constexpr std::size_t bytes = 500000;
  std::vector<std::byte> to(bytes, std::byte(1)), first(bytes), second(bytes);
  Transfers transfers(world.comm);
  if (world.rank == 0) {
    const Incoming incoming[] = {{1, first.data(), bytes}, {2, second.data(), bytes}, {2, first.data(), 0}};
    transfers.begin({}, incoming);
    CHECK_FALSE(transfers.take());
    CHECK(transfers.missing() == "nothing from rank 1, 2");
    CHECK(transfers.abandon(Seconds(0.1)));
  }
  MPI_Barrier(world.comm);
  if (world.rank == 1) {
    const Outgoing outgoing[] = {{0, to.data(), bytes}};
    transfers.begin(outgoing, {});
    CHECK_FALSE(dist::wait_until(Seconds(0.1), [&] { return transfers.take(); }));
    CHECK(transfers.missing() == "nothing received by rank 0");
    CHECK(transfers.abandon(Seconds(0.1)));
  }
  MPI_Barrier(world.comm);
  CHECK(first == std::vector<std::byte>(bytes));
  CHECK(second == std::vector<std::byte>(bytes));
}

using dist::mpi::Progress;

namespace {

/// Returns true if the transfers complete without MPI calls of this thread, by the calls of the progress thread.
bool arrives(Progress& progress, const Transfers& transfers) {
  return dist::wait_until(Seconds(20), [&] {
    const auto alone = progress.pause();
    return transfers.complete();
  });
}

}  // namespace

TEST_CASE("Progress: an empty exchange completes, stop returns no error") {
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

TEST_CASE("Progress: stop returns an error only once") {
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
