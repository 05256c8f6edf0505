#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <vector>

#include "gatefold/core/types.hpp"
#include "gatefold/distributed/shards.hpp"

namespace gatefold::test {

/// Memory that delays all work until finish(). A missing wait then shows as a wrong value.
struct LateMemory {
  static constexpr bool is_host = false;
  std::vector<std::function<void()>>* asked;

  template <class T>
  void copy(const T* from, Index n, T* to) const {
    asked->push_back([=] {
      if (n > 0) std::memcpy(to, from, static_cast<std::size_t>(n) * sizeof(T));
    });
  }
  template <class T>
  void add(const T* from, Index n, T* to) const {
    asked->push_back([=] {
      for (Index i = 0; i < n; ++i) to[i] += from[i];
    });
  }
  void finish() const {
    for (const auto& work : *asked) work();
    asked->clear();
  }
};

/// Exchanges values of different lengths between shards. The values are made late, and each exchange also computes a
/// value in its callback. Returns the number of wrong values on this rank.
template <class W>
int wrong_of_late(W& world, Index shards) {
  const auto at = [](Index i) { return static_cast<std::size_t>(i); };
  const auto value = [](Index from, Index to, Index k) { return std::int64_t{1000 * from + 100 * to + k}; };
  const auto length = [](Index from, Index to, Index round) { return (2 * from + 3 * to + round) % 5; };
  std::atomic<int> wrong = 0;
  dist::run(world, shards, [&](auto& shard) {
    std::vector<std::function<void()>> asked;
    const LateMemory memory{&asked};
    const Index me = shard.index();
    for (Index round = 0; round < 4; ++round) {
      std::vector<std::vector<std::int64_t>> made(at(shards)), give(at(shards)), take(at(shards));
      std::vector<dist::Bytes> out;
      std::vector<dist::Room> in;
      for (Index j = 0; j < shards; ++j) {
        for (Index k = 0; k < length(me, j, round); ++k) made[at(j)].push_back(value(me, j, k));
        give[at(j)].resize(made[at(j)].size());
        take[at(j)].resize(at(length(j, me, round)));
        memory.copy(made[at(j)].data(), length(me, j, round), give[at(j)].data());
        out.push_back(shard.bytes(give[at(j)].data(), length(me, j, round)));
        in.push_back(shard.room(take[at(j)].data(), length(j, me, round)));
      }
      const std::int64_t from = round;
      std::int64_t computed = -1;
      shard.exchange(memory, out, in, [&] { memory.copy(&from, Index(1), &computed); });
      wrong += computed != round;
      for (Index j = 0; j < shards; ++j)
        for (Index k = 0; k < length(j, me, round); ++k) wrong += take[at(j)][at(k)] != value(j, me, k);
    }
  });
  return wrong;
}

}  // namespace gatefold::test
