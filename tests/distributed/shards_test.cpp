#include "gatefold/distributed/shards.hpp"

#include <doctest/doctest.h>

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "support/processes.hpp"

using namespace gatefold;

namespace {

/// Exchanges a byte with each shard and runs `work` during the exchange.
template <class Work>
void exchange_beside(auto& shard, const Work& work) {
  std::vector<std::byte> give(static_cast<std::size_t>(shard.count())), take(give.size());
  std::vector<dist::Bytes> out;
  std::vector<dist::Room> in;
  for (std::size_t j = 0; j < give.size(); ++j) {
    out.emplace_back(&give[j], 1);
    in.emplace_back(&take[j], 1);
  }
  shard.exchange(dist::HostMemory{}, out, in, work);
}
/// In round r, shard i sends length(i, j, r) values to shard j: value(i, j, r, k) for each index k.
Index length(Index i, Index j, Index r) { return (7 * i + 3 * j + 5 * r) % 11; }
std::int64_t value(Index i, Index j, Index r, Index k) { return ((i * 100 + j) * 100 + r) * 100 + k; }

std::string message_of(Index shards, void (*program)(dist::Shard<dist::Alone>&)) {
  dist::Alone world;
  try {
    dist::run(world, shards, program);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

}  // namespace

TEST_CASE("Range::of: divides a count evenly and in order") {
  for (Index things : {0, 1, 3, 7, 64})
    for (Index places = 1; places < 9; ++places) {
      Index next = 0;
      for (Index i = 0; i < places; ++i) {
        const auto r = dist::Range::of(things, i, places);
        CHECK(r.first == next);
        CHECK(r.count >= things / places);
        CHECK(r.count <= (things + places - 1) / places);
        next += r.count;
      }
      CHECK(next == things);
    }
}

TEST_CASE("Shard: every shard receives the messages of every other shard") {
  for (Index shards : {1, 2, 3, 5}) {
    dist::Alone world;
    std::atomic<int> wrong = 0;
    dist::run(world, shards, [&](auto& shard) {
      const Index me = shard.index(), all = shard.count();
      for (Index r = 0; r < 30; ++r) {
        std::vector<std::vector<std::int64_t>> give(static_cast<std::size_t>(all)), take(give.size());
        std::vector<dist::Bytes> out;
        std::vector<dist::Room> in;
        for (Index j = 0; j < all; ++j) {
          auto& g = give[static_cast<std::size_t>(j)];
          for (Index k = 0; k < length(me, j, r); ++k) g.push_back(value(me, j, r, k));
          take[static_cast<std::size_t>(j)].resize(static_cast<std::size_t>(length(j, me, r)));
          out.push_back(std::as_bytes(std::span(g)));
          in.push_back(std::as_writable_bytes(std::span(take[static_cast<std::size_t>(j)])));
        }
        shard.exchange(out, in);
        for (Index j = 0; j < all; ++j)
          for (Index k = 0; k < length(j, me, r); ++k)
            if (take[static_cast<std::size_t>(j)][static_cast<std::size_t>(k)] != value(j, me, r, k)) ++wrong;
      }
    });
    CHECK(wrong == 0);
  }
}

TEST_CASE("Shard: gathered values are in order of shards") {
  dist::Alone world;
  std::atomic<int> wrong = 0;
  dist::run(world, 4, [&](auto& shard) {
    const std::vector<Index> counts{2, 0, 3, 1};
    std::vector<double> mine(3, 10.0 * static_cast<double>(shard.index())), all(6, -1);
    for (std::size_t k = 0; k < 3; ++k) mine[k] += static_cast<double>(k);
    shard.template all_gather<double>(mine.data(), counts, all.data());
    if (all != std::vector<double>{0, 1, 20, 21, 22, 30}) ++wrong;
  });
  CHECK(wrong == 0);
}

TEST_CASE("Shard: sum adds in a binary tree for any length") {
  for (Index shards = 1; shards <= 7; ++shards)
    for (Index n : {0, 1, 2, 5, 64}) {
      // Terms whose sum depends on the order of addition.
      std::vector<std::vector<float>> terms(static_cast<std::size_t>(shards));
      std::mt19937 generator(static_cast<unsigned>(shards * 100 + n));
      for (auto& t : terms)
        for (Index i = 0; i < n; ++i) t.push_back(std::uniform_real_distribution<float>(-1, 1)(generator) * 1e3f);
      auto tree = terms;
      for (std::size_t step = 1; step < tree.size(); step *= 2)
        for (std::size_t j = 0; j + step < tree.size(); j += 2 * step)
          for (std::size_t i = 0; i < tree[j].size(); ++i) tree[j][i] += tree[j + step][i];
      dist::Alone world;
      std::atomic<int> wrong = 0;
      dist::run(world, shards, [&](auto& shard) {
        auto mine = terms[static_cast<std::size_t>(shard.index())];
        shard.sum(mine.data(), n);
        if (mine != tree[0]) ++wrong;
        if (shard.sum(shard.index() + 1) != shards * (shards + 1) / 2) ++wrong;
      });
      CHECK(wrong == 0);
    }
}

TEST_CASE("Shard: a failure during overlapped work reaches other processes") {
  for (const Index failing : {0, 3, 4}) {
    CAPTURE(failing);
    support::Processes all(2);
    std::string said[2];
    all.run([&](auto& world) {
      try {
        dist::run(world, 5, [&](auto& shard) {
          for (int round = 0; round < 3; ++round)
            exchange_beside(shard, [&] {
              if (round == 1 && shard.index() == failing) throw ArgumentError("the disk is full");
            });
        });
      } catch (const Error& e) {
        said[world.rank()] = e.what();
      }
    });
    const int rank = failing < 2 ? 0 : 1;
    CHECK(said[rank] == "the disk is full");
    CHECK(said[1 - rank] == "rank " + std::to_string(rank) + ": the disk is full");
  }
}

TEST_CASE("run: rethrows the first exception after all shards have ended") {
  CHECK(message_of(3, [](auto& shard) {
          if (shard.index() == 1) throw ArgumentError("TopK: k: expected 1");
          shard.barrier();
        }) == "TopK: k: expected 1");
  CHECK(message_of(3, [](auto& shard) {
          if (shard.index() != 2) shard.barrier();
        }).find("the shards do not run the same program") != std::string::npos);
  CHECK(message_of(3,
                   [](auto& shard) {  // the others arrive after one has left
                     if (shard.index() != 2) {
                       std::this_thread::sleep_for(std::chrono::milliseconds(100));
                       shard.barrier();
                     }
                   })
            .find("the shards do not run the same program") != std::string::npos);
  const std::string unequal = message_of(2, [](auto& shard) {
    std::int32_t give[4] = {}, take[8];
    const Index more = shard.index();  // shard 1 expects 8 bytes more
    const dist::Bytes out[] = {shard.bytes(give, 2), shard.bytes(give, 2)};
    const dist::Room in[] = {shard.room(take, 2 + more * 2), shard.room(take + 4, 2 + more * 2)};
    shard.exchange(out, in);
  });
  CHECK(unequal.find("sends shard 1 8 bytes, but that shard expects 16") != std::string::npos);
  // Shard 1 throws during an exchange while the other shards wait for it (0), still compute (1) or have not arrived
  // (2).
  for (const int others : {0, 1, 2}) {
    CAPTURE(others);
    std::string sentence;
    try {
      dist::Alone alone;
      dist::run(alone, 3, [&](auto& shard) {
        const auto late = [] { std::this_thread::sleep_for(std::chrono::milliseconds(100)); };
        if (shard.index() != 1) {
          if (others == 2) late();
          exchange_beside(shard, [&] {
            if (others == 1) late();
          });
          shard.barrier();
        } else {
          exchange_beside(shard, [] { throw ArgumentError("TopK: k: expected 1"); });
        }
      });
    } catch (const Error& e) {
      sentence = e.what();
    }
    CHECK(sentence == "TopK: k: expected 1");
  }
  CHECK(message_of(2, [](auto& shard) {
          exchange_beside(shard, [&] { shard.barrier(); });
        }).find("the work that runs during an exchange must not start another exchange") != std::string::npos);
  dist::Alone world;
  CHECK_THROWS_WITH_AS(dist::run(world, 0, [](auto&) {}),
                       "dist::run: shards: expected at least 1 (the number of processes), got 0", ArgumentError);
}

#ifdef __GLIBC__
TEST_CASE("run: throws if a shard's thread cannot start") {
  // Requests for new threads a stack that is larger than the memory of any machine, so that they cannot start.
  struct HugeStacks {
    pthread_attr_t before, huge;
    HugeStacks() {
      pthread_getattr_default_np(&before);
      pthread_getattr_default_np(&huge);
      pthread_attr_setstacksize(&huge, std::size_t(1) << 50);
    }
    ~HugeStacks() { of_threads(before); }
    static void of_threads(const pthread_attr_t& attributes) { pthread_setattr_default_np(&attributes); }
  } stacks;
  std::atomic<int> ended = 0;
  const auto program = [&](auto& shard) {
    struct End {
      std::atomic<int>& ended;
      ~End() { ++ended; }
    } end{ended};
    if (shard.index() == 0) stacks.of_threads(stacks.before);
    shard.barrier();
  };
  stacks.of_threads(stacks.huge);
  dist::Alone world;
  const char* const expected = "dist::run: cannot start a thread for shard 1: ";
  std::string sentence;
  try {
    dist::run(world, 3, program);
  } catch (const DeviceError& e) {
    sentence = e.what();
  }
  CHECK(sentence.starts_with(expected));
  CHECK(sentence.size() > std::string(expected).size());  // followed by the message of the system
  CHECK(ended == 1);
}
#endif

namespace {

/// Returns on how many of five shards an E with this message is caught. Afterwards all shards must still agree on sums.
template <class E>
int caught(const std::string& sentence, const auto& f) {
  std::atomic<int> count = 0, wrong = 0;
  dist::Alone world;
  dist::run(world, 5, [&](auto& shard) {
    try {
      dist::collectively(shard, [&] { f(shard.index()); });
    } catch (const E& e) {
      if (e.what() == sentence) ++count;
    }
    if (shard.sum(shard.index()) != 0 + 1 + 2 + 3 + 4) ++wrong;
  });
  CHECK(wrong == 0);
  return count;
}

}  // namespace

TEST_CASE("collectively: all shards throw the error of the lowest shard") {
  for (const Index one : {0, 3, 4}) {
    CAPTURE(one);
    CHECK(caught<FileError>("file", [&](Index shard) {
            if (shard == one) throw FileError("file");
          }) == 5);
    CHECK(caught<ArgumentError>("argument of more bytes than fit into a short string", [&](Index shard) {
            if (shard == one) throw ArgumentError("argument of more bytes than fit into a short string");
          }) == 5);
  }
  CHECK(caught<ArgumentError>("of 1", [](Index shard) {
          if (shard == 1) throw ArgumentError("of 1");
          if (shard > 1) throw FileError("of " + std::to_string(shard));
        }) == 5);
  CHECK(caught<FileError>("", [](Index) { throw FileError(""); }) == 5);
  CHECK(caught<Error>("", [](Index) {}) == 0);
}

TEST_CASE("collectively: all shards run the function, even if one throws") {
  std::atomic<int> ran = 0;
  CHECK(caught<FileError>("file", [&](Index shard) {
          ++ran;
          if (shard == 0) throw FileError("file");
        }) == 5);
  CHECK(ran == 5);
}

TEST_CASE("collectively: exceptions other than gatefold::Error end the run") {
  CHECK_THROWS_WITH_AS(caught<Error>("",
                                     [](Index shard) {
                                       if (shard == 2) throw std::runtime_error("other");
                                     }),
                       "other", std::runtime_error);
}
