#include "gatefold/dist/group.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <deque>
#include <string>
#include <thread>
#include <vector>

#include "gatefold/dist/memory.hpp"
#include "support/processes.hpp"

using namespace gatefold;
using support::Processes;

namespace {

std::size_t at(Index i) { return static_cast<std::size_t>(i); }
/// What shard i gives shard j in round r, of some length.
std::vector<std::byte> message(Index i, Index j, Index r) {
  std::vector<std::byte> bytes;
  for (Index k = 0; k < (5 * i + 3 * j + r) % 13; ++k) bytes.push_back(static_cast<std::byte>(i * 17 + j * 5 + r + k));
  return bytes;
}

}  // namespace

TEST_CASE("shards of several processes receive what every other gives them, and count it") {
  for (const int processes : {1, 2, 3})
    for (const Index shards : {3, 5}) {
      Processes all(processes);
      std::atomic<int> wrong = 0;
      std::vector<std::thread> threads;
      std::deque<Processes::World> worlds;
      std::deque<dist::group::Group<Processes::World>> groups;
      for (int p = 0; p < processes; ++p) {
        worlds.push_back({&all, p});
        groups.emplace_back(worlds.back(), shards);
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
          });
      for (auto& thread : threads) thread.join();
      CAPTURE(processes);
      CAPTURE(shards);
      CHECK(wrong == 0);
    }
}
