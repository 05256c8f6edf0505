#include "gatefold/distributed/hierarchical.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "support/messages.hpp"
#include "support/pass.hpp"
#include "support/processes.hpp"

using namespace gatefold;
using support::Letter;
using support::Mail;
using support::Processes;

namespace {

/// Counts the messages that leave a node of `node` ranks, and their bytes.
struct Counted {
  Processes::World world;
  int node;
  int messages = 0;
  std::size_t bytes = 0;

  int rank() const { return world.rank(); }
  int size() const { return world.size(); }
  void exchange(std::span<const dist::Outgoing> outgoing, std::span<const dist::Incoming> incoming) {
    for (const auto& m : outgoing)
      if (m.rank / node != rank() / node) {
        ++messages;
        bytes += m.bytes;
      }
    world.exchange(outgoing, incoming);
  }
  void fail(const std::string&) noexcept {}
};
static_assert(dist::World<dist::Hierarchical<Counted>> && !dist::StartingWorld<dist::Hierarchical<Counted>>);
static_assert(dist::StartingWorld<dist::Hierarchical<Processes::World>>);

void on_ranks(int ranks, const std::function<void(Processes::World)>& program) {
  Processes all(ranks);
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r) threads.emplace_back([&, r] { program({&all, r}); });
  for (auto& thread : threads) thread.join();
}
/// Returns the mail of `rank`: up to 3 letters to each other rank, and up to 3 from each.
Mail mail_of(int rank, int ranks, int round) {
  Mail mail;
  for (int k = 0; k < 3; ++k)
    for (int i = 0; i < ranks; ++i) {
      const int other = (i + round) % ranks;
      if (other == rank) continue;
      const Letter to{rank, other, round, k}, from{other, rank, round, k};
      if (to.mixed(7) % 4 != 0) mail.send(to);
      if (from.mixed(7) % 4 != 0) mail.get(from);
    }
  return mail;
}

}  // namespace

TEST_CASE("Hierarchical: all messages arrive, one message per node pair") {
  struct Case {
    int ranks, node;
  };
  for (const Case c :
       {Case{1, 1}, Case{2, 1}, Case{2, 2}, Case{4, 2}, Case{6, 2}, Case{6, 3}, Case{8, 4}, Case{9, 3}}) {
    CAPTURE(c.ranks);
    CAPTURE(c.node);
    std::atomic<int> wrong = 0, messages = 0, crossed = 0;
    on_ranks(c.ranks, [&](Processes::World world) {
      Counted counted{world, c.node};
      dist::Hierarchical nodes(counted, c.node);
      wrong += nodes.rank() != world.rank() || nodes.size() != c.ranks;
      for (int round = 0; round < 6; ++round) {
        Mail mail = mail_of(world.rank(), c.ranks, round);
        counted.messages = 0;
        counted.bytes = 0;
        nodes.exchange(mail.outgoing(), mail.incoming());
        wrong += !mail.right();
        if (c.node == 1 || c.node == c.ranks) continue;
        wrong += counted.messages > c.ranks / c.node - 1;
        messages += counted.messages;
        crossed += counted.bytes > 0;
      }
    });
    CHECK(wrong == 0);
    if (c.node > 1 && c.node < c.ranks) CHECK((messages > 0 && crossed > 0));
  }
}

TEST_CASE("Hierarchical: all messages arrive in a split exchange") {
  for (const int node : {1, 2, 4}) {
    CAPTURE(node);
    std::atomic<int> wrong = 0;
    on_ranks(4, [&](Processes::World world) {
      dist::Hierarchical nodes(world, node);
      for (int round = 0; round < 6; ++round) {
        Mail mail = mail_of(world.rank(), 4, round);
        const auto outgoing = mail.outgoing();
        const auto incoming = mail.incoming();
        nodes.begin(outgoing, incoming);
        if (node == 2)  // otherwise the world itself throws
          wrong += support::message_of([&] { nodes.begin(outgoing, incoming); }) !=
                   "Hierarchical.begin: exchange: expected the previous exchange to be finished, got one in progress";
        nodes.finish();
        wrong += !mail.right();
      }
    });
    CHECK(wrong == 0);
  }
}

TEST_CASE("Hierarchical: the matching rank sends bytes to another node once") {
  // Nodes are {0, 1} and {2, 3}. Rank 1 sends rank 0's 1000 bytes to rank 3, after the sizes of two parts.
  std::atomic<std::size_t> bytes[4] = {};
  on_ranks(4, [&](Processes::World world) {
    Counted counted{world, 2};
    dist::Hierarchical nodes(counted, 2);
    const std::vector<std::byte> sent(1000, std::byte{7});
    std::vector<std::byte> got(1000);
    std::vector<dist::Outgoing> outgoing;
    std::vector<dist::Incoming> incoming;
    if (world.rank() == 0) outgoing.push_back({3, sent.data(), sent.size()});
    if (world.rank() == 3) incoming.push_back({0, got.data(), got.size()});
    nodes.exchange(outgoing, incoming);
    bytes[world.rank()] = counted.bytes;
    if (world.rank() == 3) CHECK(got == sent);
  });
  CHECK(bytes[0] == 0);
  CHECK(bytes[1] == 1000 + 2 * sizeof(std::uint64_t));
  CHECK(bytes[2] == 0);
  CHECK(bytes[3] == 0);
}

TEST_CASE("Hierarchical: throws for uneven nodes or wrong sizes") {
  Processes six(6);
  Processes::World world{&six, 0};
  CHECK_THROWS_WITH_AS(dist::Hierarchical(world, 4),
                       "Hierarchical: node: expected a positive divisor of 6 ranks, got 4", ArgumentError);
  CHECK_THROWS_AS(dist::Hierarchical(world, 0), ArgumentError);
  CHECK_THROWS_AS(dist::Hierarchical(world, -2), ArgumentError);

  // Ranks 0 and 1 send 3 and 5 bytes to rank 2, which expects 5 and 3. The totals agree.
  std::string sentence;
  on_ranks(4, [&](Processes::World of) {
    dist::Hierarchical nodes(of, 2);
    const std::vector<std::byte> sent(5);
    std::vector<std::byte> got(8);
    std::vector<dist::Outgoing> outgoing;
    std::vector<dist::Incoming> incoming;
    if (of.rank() == 0) outgoing.push_back({2, sent.data(), 3});
    if (of.rank() == 1) outgoing.push_back({2, sent.data(), 5});
    if (of.rank() == 2) incoming = {{0, got.data(), 5}, {1, got.data() + 5, 3}};
    try {
      nodes.exchange(outgoing, incoming);
    } catch (const DeviceError& error) {
      sentence = error.what();  // only rank 2 throws
    }
  });
  CHECK(sentence == "Hierarchical.exchange: rank 0 sends 3 bytes, expected 5");
}
