#include "gatefold/dist/group.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <deque>
#include <future>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

using namespace gatefold;

namespace {

/// Processes that are threads of this one: a world for tests, whose messages are copied when both sides are there.
class Processes {
 public:
  explicit Processes(int size) : queues_(static_cast<std::size_t>(size * size)) {}

  struct World {
    Processes* all;
    int of;
    int rank() const { return of; }
    int size() const { return all->size(); }
    void exchange(std::span<const dist::Outgoing> outgoing, std::span<const dist::Incoming> incoming) {
      for (const auto& m : outgoing) all->put(of, m);
      for (const auto& m : incoming) all->take(of, m);
    }
    void fail(const std::string&) noexcept {}
  };
  int size() const {
    int n = 0;
    while (static_cast<std::size_t>(n * n) < queues_.size()) ++n;
    return n;
  }

 private:
  std::deque<std::vector<std::byte>>& queue(int from, int to) {
    return queues_[static_cast<std::size_t>(from * size() + to)];
  }
  void put(int from, const dist::Outgoing& m) {
    const std::lock_guard lock(mutex_);
    queue(from, m.rank).emplace_back(m.data, m.data + m.bytes);
  }
  void take(int to, const dist::Incoming& m) {
    for (;;) {
      {
        const std::lock_guard lock(mutex_);
        auto& waiting = queue(m.rank, to);
        if (!waiting.empty()) {
          if (waiting.front().size() != m.bytes) throw DeviceError("another size");
          std::copy(waiting.front().begin(), waiting.front().end(), m.data);
          waiting.pop_front();
          return;
        }
      }
      std::this_thread::yield();
    }
  }

  std::mutex mutex_;
  std::vector<std::deque<std::vector<std::byte>>> queues_;
};
static_assert(dist::World<Processes::World>);

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
              group.exchange(me, out, in, traffic);
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
