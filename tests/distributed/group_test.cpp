#include "gatefold/distributed/group.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <deque>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "gatefold/distributed/memory.hpp"
#include "gatefold/distributed/processes.hpp"
#include "support/processes.hpp"

using namespace gatefold;
using support::Processes;

namespace {

std::size_t at(Index i) { return static_cast<std::size_t>(i); }
/// Returns what shard i sends shard j in round r. Its length varies.
std::vector<std::byte> message(Index i, Index j, Index r) {
  std::vector<std::byte> bytes;
  for (Index k = 0; k < (5 * i + 3 * j + r) % 13; ++k) bytes.push_back(static_cast<std::byte>(i * 17 + j * 5 + r + k));
  return bytes;
}

}  // namespace

TEST_CASE("Group: shards of several processes exchange messages and count traffic") {
  for (const int processes : {1, 2, 3})
    for (const Index shards : {3, 5}) {
      const bool meets = shards == 5;  // true: shards wait for each other before an exchange; the counts are equal
      Processes all(processes);
      std::atomic<int> wrong = 0;
      std::vector<std::thread> threads;
      std::deque<Processes::World> worlds;
      std::deque<dist::group::Group<Processes::World>> groups;
      for (int p = 0; p < processes; ++p) {
        worlds.push_back({&all, p});
        groups.emplace_back(worlds.back(), shards, meets);
      }
      for (int p = 0; p < processes; ++p)
        for (Index i = groups[static_cast<std::size_t>(p)].here().first, n = 0;
             n < groups[static_cast<std::size_t>(p)].here().count; ++n)
          threads.emplace_back([&, p, me = i + n] {
            auto& group = groups[static_cast<std::size_t>(p)];
            dist::Traffic traffic;
            std::uint64_t given = 0, sent = 0;
            for (Index r = 0; r < 40; ++r) {
              std::vector<std::vector<std::byte>> give, take;
              std::vector<dist::Bytes> out;
              std::vector<dist::Room> in;
              for (Index j = 0; j < shards; ++j) {
                give.push_back(message(me, j, r));
                take.emplace_back(message(j, me, r).size());
                if (j != me) given += give.back().size();
                const auto here = group.here();
                if (j < here.first || j >= here.first + here.count) sent += give.back().size();
              }
              for (Index j = 0; j < shards; ++j) {
                out.emplace_back(give[at(j)]);
                in.emplace_back(take[at(j)]);
              }
              group.exchange(dist::HostMemory{}, me, out, in, traffic);
              for (Index j = 0; j < shards; ++j) wrong += take[at(j)] != message(j, me, r);
            }
            wrong += traffic.exchanges != 40 || traffic.given != given || traffic.sent != sent;
            wrong += !(traffic.waiting >= 0 && traffic.waiting <= traffic.seconds);
          });
      for (auto& thread : threads) thread.join();
      CAPTURE(processes);
      CAPTURE(shards);
      CHECK(wrong == 0);
    }
}

TEST_CASE("Group: a shard that arrives early counts more waiting time") {
  for (const int processes : {1, 2}) {
    Processes all(processes);
    std::deque<Processes::World> worlds;
    std::deque<dist::group::Group<Processes::World>> groups;
    for (int p = 0; p < processes; ++p) {
      worlds.push_back({&all, p});
      groups.emplace_back(worlds.back(), 2, true);
    }
    dist::Traffic traffic[2];
    const auto run = [&](Index me) {
      auto& group = groups[processes == 1 ? 0 : at(me)];
      const std::vector<dist::Bytes> out(2);
      const std::vector<dist::Room> in(2);
      dist::Traffic first;
      group.exchange(dist::HostMemory{}, me, out, in, first);
      if (me == 1) std::this_thread::sleep_for(std::chrono::milliseconds(200));
      group.exchange(dist::HostMemory{}, me, out, in, traffic[me]);
    };
    std::thread other(run, 1);
    run(0);
    other.join();
    CAPTURE(processes);
    CHECK(traffic[0].waiting > traffic[1].waiting);
    CHECK(traffic[0].waiting > 0.05);
  }
}

TEST_CASE("Group: work during the exchange does not count as waiting") {
  /// A world that counts how often begin and finish have returned.
  struct Watched {
    Processes::World world;
    std::atomic<int> halves = 0;
    int rank() const { return world.rank(); }
    int size() const { return world.size(); }
    void exchange(std::span<const dist::Outgoing> outgoing, std::span<const dist::Incoming> incoming) {
      world.exchange(outgoing, incoming);
    }
    void begin(std::span<const dist::Outgoing> outgoing, std::span<const dist::Incoming> incoming) {
      world.begin(outgoing, incoming);
      ++halves;
    }
    void finish() {
      world.finish();
      ++halves;
    }
    void fail(const std::string&) noexcept {}
  };
  for (const bool meets : {false, true}) {
    Processes all(2);
    Watched worlds[] = {{{&all, 0}}, {{&all, 1}}};
    std::deque<dist::group::Group<Watched>> groups;
    for (Watched& world : worlds) groups.emplace_back(world, 4, meets);
    std::atomic<int> wrong = 0, works = 0;
    const auto run = [&](Index me) {
      const std::size_t process = at(me / 2);
      std::vector<std::vector<std::byte>> give, take;
      std::vector<dist::Bytes> out;
      std::vector<dist::Room> in;
      for (Index j = 0; j < 4; ++j) {
        give.push_back(message(me, j, 1));
        take.emplace_back(message(j, me, 1).size());
      }
      for (Index j = 0; j < 4; ++j) {
        out.emplace_back(give[at(j)]);
        in.emplace_back(take[at(j)]);
      }
      dist::Traffic traffic;
      const auto begin = std::chrono::steady_clock::now();
      groups[process].exchange(dist::HostMemory{}, me, out, in, traffic, [&] {
        ++works;
        if (me % 2 == 0) return;  // the other shard of this process arrives late, and this one waits
        if (!meets) wrong += !dist::wait_until(dist::Seconds(20), [&] { return worlds[process].halves == 1; });
        std::this_thread::sleep_for(std::chrono::milliseconds(200));
        wrong += worlds[process].halves != (meets ? 0 : 1);
      });
      const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
      for (Index j = 0; j < 4; ++j) wrong += take[at(j)] != message(j, me, 1);
      wrong += worlds[process].halves != (meets ? 0 : 2);
      wrong += !(traffic.waiting >= 0 && traffic.waiting <= traffic.seconds && traffic.seconds <= seconds);
      if (me % 2 == 1) wrong += !(traffic.seconds <= seconds - 0.19);
      if (me % 2 == 0) wrong += !(traffic.waiting >= 0.05);
    };
    std::vector<std::thread> threads;
    for (Index me = 0; me < 4; ++me) threads.emplace_back(run, me);
    for (auto& thread : threads) thread.join();
    CAPTURE(meets);
    CHECK(wrong == 0);
    CHECK(works == 4);
  }
}
