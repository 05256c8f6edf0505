#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "gatefold/core/error.hpp"
#include "gatefold/core/philox.hpp"
#include "gatefold/core/types.hpp"
#include "gatefold/dist/memory.hpp"
#include "gatefold/tensor/pack.hpp"

/// What all shards hold is the same on all of them, or the run goes wrong without a word.
namespace gatefold::dist {

namespace same {

inline std::uint64_t hash(std::uint64_t h, const void* from, std::size_t bytes) {
  const auto* p = static_cast<const unsigned char*>(from);
  for (std::size_t i = 0; i < bytes; i += sizeof h) {
    std::uint64_t word = 0;
    std::memcpy(&word, p + i, bytes - i < sizeof word ? bytes - i : sizeof word);
    h = mix64(h ^ word);
  }
  return h;
}
struct Numbers {
  std::vector<std::uint64_t> found{};
  std::vector<std::string> names{};

  void add(const Name& at, std::uint64_t h) {
    found.push_back(h);
    names.push_back(at.str());
  }
};
/// Of every tensor a number: of one that all hold its extents and values, of one of a Sharded pack the extents after
/// the first; and one of how its experts are placed.
template <class M>
struct NumbersOfPack : Numbers {
  const M& memory;
  explicit NumbersOfPack(const M& of) : memory(of) {}

  template <class P>
  std::uint64_t extents(const P& t, int from) const {
    std::uint64_t h = 0;
    for (int d = from; d < P::rank; ++d) h = mix64(h ^ static_cast<std::uint64_t>(t.extent(d)));
    return h;
  }
  void operator()(const Name& at, const auto& t) {
    const auto values = memory.read(t.data(), t.size());
    add(at, hash(extents(t, 0), values.data(), values.size() * sizeof(*t.data())));
  }
  void sharded(const Name& at, const auto& p) {
    if (p.deal) {
      const auto& placement = p.deal->placement.shard_of;
      add(Name{&at, "placement"}, hash(0, placement.data(), placement.size() * sizeof(Index)));
    }
    auto one = [&](const Name& name, const auto& t) { add(name, extents(t, 1)); };
    pack::visit<false>(one, at, p.part);
  }
};

/// Where a number is not that of shard 0: the first such place and shard; −1: nowhere.
template <class ShardT>
Index first_difference(ShardT& shard, const std::vector<std::uint64_t>& mine, Index& other) {
  const auto count = static_cast<Index>(mine.size());
  std::vector<Index> counts(static_cast<std::size_t>(shard.count()));
  shard.all_gather(&count, Index(1), counts.data());
  for (std::size_t j = 0; j < counts.size(); ++j)
    if (counts[j] != counts[0]) {
      other = static_cast<Index>(j);
      return 0;
    }
  std::vector<std::uint64_t> all(mine.size() * static_cast<std::size_t>(shard.count()));
  shard.all_gather(mine.data(), count, all.data());
  for (std::size_t i = 0; i < mine.size(); ++i)
    for (std::size_t j = 0; j < counts.size(); ++j)
      if (all[j * mine.size() + i] != all[i]) {
        other = static_cast<Index>(j);
        return static_cast<Index>(i);
      }
  return -1;
}

template <class ShardT>
void expect_numbers(ShardT& shard, const char* where, const Numbers& mine) {
  Index other = 0;
  const Index i = first_difference(shard, mine.found, other);
  if (i < 0) return;
  expect(false, where, mine.names[static_cast<std::size_t>(i)], "the same on all shards",
         Joined{"another on shard ", other, " than on shard 0"});
}

}  // namespace same

/// Require of a pack that all shards hold the same: values of what is not sharded, shapes of what is.
/// @throws ArgumentError on all shards, naming the first tensor that differs
/// @param memory  where its tensors are
/// @cost   a reading of the pack, and two small exchanges
template <class ShardT, class M, class P>
void expect_same(ShardT& shard, const M& memory, const char* where, const P& pack) {
  if (shard.count() == 1) return;
  same::NumbersOfPack<M> numbers(memory);
  for_each_tensor(numbers, pack);
  same::expect_numbers(shard, where, numbers);
}
/// The same of a number.
template <class ShardT>
void expect_same(ShardT& shard, const char* where, const char* name, double value) {
  same::Numbers numbers;
  numbers.add(Name{nullptr, name}, same::hash(0, &value, sizeof value));
  same::expect_numbers(shard, where, numbers);
}

}  // namespace gatefold::dist
