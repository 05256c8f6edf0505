#include "gatefold/distributed/mpi.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "gatefold/distributed/shards.hpp"
#include "support/messages.hpp"
#include "support/mpi_started.hpp"

// Every rank runs all cases. tests/mpi starts 1 to 4 ranks; a program that is started alone has one.

using namespace gatefold;
using support::Letter;
using support::Mail;

static_assert(dist::StartingWorld<dist::Mpi>);
static_assert(!std::is_copy_constructible_v<dist::Mpi> && !std::is_move_constructible_v<dist::Mpi>);

namespace {

struct Started {
  Started() { support::start_mpi(); }
};
// A world of the processes that were started.
struct World : Started, dist::Mpi {
  explicit World(double timeout = 30, bool progress = false) : Mpi({.timeout = timeout, .progress = progress}) {}
};

void exchange(World& world, Mail& mail) {
  world.exchange(mail.outgoing(), mail.incoming());
  CHECK(mail.right());
}

// Returns the message of what exchange throws, "" if nothing.
std::string thrown(World& world, Mail& mail) {
  try {
    world.exchange(mail.outgoing(), mail.incoming());
  } catch (const DeviceError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("Mpi: has the size and rank of MPI_COMM_WORLD") {
  World world;
  int size = 0, rank = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  CHECK(world.size() == size);
  CHECK(world.rank() == rank);
  world.exchange({}, {});
}

TEST_CASE("Mpi: messages to the own rank or nonexistent ranks throw") {
  World world;
  std::byte byte{};
  for (const int rank : {world.rank(), world.size(), -1}) {
    const dist::Outgoing outgoing[] = {{rank, &byte, 1}};
    const dist::Incoming incoming[] = {{rank, &byte, 1}};
    CHECK_THROWS_AS(world.exchange(outgoing, {}), ArgumentError);
    CHECK_THROWS_AS(world.exchange({}, incoming), ArgumentError);
  }
  world.exchange({}, {});  // the world still works
  world.listen();
}

TEST_CASE("Mpi: a timeout of 0 seconds or less throws") { CHECK_THROWS_AS(World(0), ArgumentError); }

TEST_CASE("Mpi: messages of any size arrive in both directions") {
  World world;
  const int n = world.size(), self = world.rank();
  if (n == 1) return;
  for (int round = 0; round < 20; ++round) {
    Mail mail;
    for (const int step : {1, n - 1}) {
      mail.send({self, (self + step) % n, round, step});
      mail.get({(self + n - step) % n, self, round, step});
    }
    exchange(world, mail);
  }
}

TEST_CASE("Mpi: any thread can finish a split exchange") {
  World worlds[] = {World(30), World(30, true)};
  const int n = worlds[0].size(), self = worlds[0].rank();
  if (n == 1) return;
  for (int round = 0; round < 20; ++round) {
    World& world = worlds[round % 2];
    Mail mail;
    for (const int step : {1, n - 1}) {
      mail.send({self, (self + step) % n, round, step});
      mail.get({(self + n - step) % n, self, round, step});
    }
    const auto outgoing = mail.outgoing();
    const auto incoming = mail.incoming();
    world.begin(outgoing, incoming);
    world.listen();
    if (round % 5 == 4) {  // also if everything has arrived
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      CHECK_THROWS_AS(world.begin(outgoing, incoming), ArgumentError);
    }
    std::thread([&] { world.finish(); }).join();
    CHECK(mail.right());
  }
}

TEST_CASE("Mpi: a failure during an exchange reaches all ranks") {
  for (const std::size_t size : {10, 11, 1000000, 1000001}) {
    World world(30, size % 2 == 1);
    const int failing = world.size() - 1;
    if (world.size() == 1) return;
    std::vector<std::byte> bytes(size), room(size * std::size_t(world.size()));
    std::vector<dist::Outgoing> outgoing;
    std::vector<dist::Incoming> incoming;
    for (int other = 0; other < world.size(); ++other) {
      if (other == world.rank()) continue;
      outgoing.push_back({other, bytes.data(), size});
      incoming.push_back({other, room.data() + size * std::size_t(other), size});
    }
    if (world.rank() == failing) {
      world.begin(outgoing, incoming);
      world.fail("the disk is full");
      CHECK_THROWS_WITH_AS(world.finish(), "the disk is full", DeviceError);
    } else {
      std::string sentence;
      try {
        for (;;) {
          world.begin(outgoing, incoming);
          world.finish();
        }
      } catch (const DeviceError& error) {
        sentence = error.what();
      }
      CHECK(sentence == "rank " + std::to_string(failing) + ": the disk is full");
    }
  }
}

TEST_CASE("Mpi: messages between two ranks keep order across threads") {
  World world;
  const int n = world.size(), self = world.rank();
  for (int round = 0; round < 20; ++round) {
    std::thread([&] {
      Mail mail;
      for (int number = 0; number < 5; ++number)
        for (int other = 0; other < n; ++other) {
          if (other == self) continue;
          mail.send({self, other, round, number});
          mail.get({other, self, round, number});
        }
      exchange(world, mail);
    }).join();
  }
}

TEST_CASE("Mpi: sums have equal bits for any number of processes") {
  World world;
  std::vector<float> expected(5);
  for (std::size_t j = 0; j < 5; ++j) expected[j] = 1.0f / float(j + 3);
  const float sum = ((expected[0] + expected[1]) + (expected[2] + expected[3])) + expected[4];
  std::atomic<int> right = 0;
  dist::run(world, 5, [&](auto& shard) {
    bool equal = true;
    for (int round = 0; round < 20; ++round) equal = equal && shard.sum(expected[std::size_t(shard.index())]) == sum;
    if (equal) ++right;
  });
  CHECK(right == int(dist::Range::of(5, world.rank(), world.size()).count));
}

TEST_CASE("Mpi: one rank can send to all other ranks") {
  World world;
  for (int round = 0; round < 20; ++round) {
    Mail mail;
    const int from = round % world.size();
    for (int to = 0; to < world.size(); ++to) {
      if (to == from) continue;
      if (world.rank() == from) mail.send({from, to, round, 0});
      if (world.rank() == to) mail.get({from, to, round, 0});
    }
    exchange(world, mail);
  }
}

TEST_CASE("Mpi: two worlds do not mix their messages") {
  World first, second;
  if (first.size() == 1) return;
  const int n = first.size(), self = first.rank();
  Mail one, two;
  one.send({self, (self + 1) % n, 1, 0});
  two.send({self, (self + 1) % n, 2, 0});
  one.get({(self + n - 1) % n, self, 1, 0});
  two.get({(self + n - 1) % n, self, 2, 0});
  exchange(first, one);
  exchange(second, two);
}

TEST_CASE("Mpi: a wrong message size throws on all ranks") {
  for (const std::size_t sent : {4, 12, 1000000}) {
    World world;
    if (world.size() == 1) return;
    std::vector<std::byte> bytes(1000000);
    const dist::Outgoing outgoing[] = {{1, bytes.data(), sent}};
    const dist::Incoming incoming[] = {{0, bytes.data(), 8}};
    std::string sentence;
    try {
      if (world.rank() == 0) world.exchange(outgoing, {});
      if (world.rank() == 1) world.exchange({}, incoming);
      Mail next;
      for (int other = 0; other < world.size(); ++other)
        if (other != world.rank()) next.get({other, world.rank(), 0, 1});  // never sent
      world.exchange(next.outgoing(), next.incoming());
    } catch (const DeviceError& error) {
      sentence = error.what();
    }
    CAPTURE(sentence);
    CHECK(sentence.starts_with(world.rank() == 1 ? "Mpi.exchange: rank 0 sent " : "rank 1: Mpi.exchange: rank 0 sent"));
    CHECK(sentence.find(sent == 4 ? "sent 4 bytes, but 8 bytes" : "sent more bytes, but 8 bytes") != std::string::npos);
  }
}

TEST_CASE("Mpi: after one rank fails, exchange throws on every rank") {
  for (const bool large : {false, true}) {
    World world;
    const int failing = world.size() - 1;
    std::vector<std::byte> bytes(large ? 1000000 : 10);
    std::string sentence;
    if (world.rank() == failing) {
      world.fail("the disk is full");
      world.fail("a second sentence");
    } else {
      std::vector<dist::Outgoing> outgoing;
      std::vector<dist::Incoming> incoming;
      std::vector<std::vector<std::byte>> room(std::size_t(world.size()), bytes);
      for (int other = 0; other < world.size(); ++other) {
        if (other == world.rank()) continue;
        outgoing.push_back({other, bytes.data(), bytes.size()});
        incoming.push_back({other, room[std::size_t(other)].data(), bytes.size()});
      }
      CHECK_THROWS_AS(world.exchange(outgoing, incoming), DeviceError);
      CHECK_THROWS_WITH_AS(world.listen(), ("rank " + std::to_string(failing) + ": the disk is full").c_str(),
                           DeviceError);
      world.fail("what it says itself");
    }
    Mail nothing;
    CHECK(thrown(world, nothing) ==
          (world.rank() == failing ? "" : "rank " + std::to_string(failing) + ": ") + "the disk is full");
  }
}

TEST_CASE("Mpi: missing messages throw after the timeout, naming the rank") {
  World world(0.5);
  if (world.size() == 1) return;
  const int silent = world.size() - 1;
  std::string sentence;
  std::byte byte{};
  const dist::Incoming incoming[] = {{silent, &byte, 1}};
  if (world.rank() != silent) {
    try {
      world.exchange({}, incoming);
    } catch (const DeviceError& error) {
      sentence = error.what();
    }
  } else {
    Mail nothing;
    while (sentence.empty()) sentence = thrown(world, nothing);
  }
  CAPTURE(sentence);
  CHECK(sentence.find("Mpi.exchange: nothing from rank " + std::to_string(silent) + " within 0.5 s") !=
        std::string::npos);
}

TEST_CASE("Mpi: a world destroyed by an exception counts as failed") {
  struct Stop {};
  std::string sentence;
  try {
    World world;
    if (world.size() == 1) return;
    if (world.rank() == 0) throw Stop{};
    Mail nothing;
    while (sentence.empty()) sentence = thrown(world, nothing);
  } catch (const Stop&) {
    sentence = "rank 0: ended by an exception";
  }
  CHECK(sentence == "rank 0: ended by an exception");
}
