#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "gatefold/distributed/placement.hpp"
#include "gatefold/optim/clone.hpp"

/// Checks that all shards have equal copies of the tensors that every shard holds. Without these checks, a run whose
/// copies differ would give wrong results but no error.
namespace gatefold::dist {

/// Checks that all shards hold the same pack (a struct of named tensors). Compares the values of tensors that all
/// shards hold, and the shapes of experts' tensors. Also compares numbers outside tensors (optim/clone.hpp), for
/// example the seed of a Trainer and its count of steps.
/// @throws ArgumentError on all shards, with the name of the first tensor or number that differs
/// @param memory  the kind of memory of the pack's tensors, for example memory_of(ctx)
/// @cost   reads the pack once; two small exchanges
template <class ShardT, class M, class P>
void expect_same(ShardT& shard, const M& memory, const char* where, const P& pack);

/// Checks that all shards pass the same list, and otherwise throws an ArgumentError that names the first element that
/// differs. The elements must be of a type that same::hash() accepts.
template <class ShardT, class V>
void expect_same(ShardT& shard, const char* where, const char* name, const std::vector<V>& list);

/// Checks that all shards pass the same number, and otherwise throws ArgumentError on all shards.
template <class ShardT, class V>
requires std::is_arithmetic_v<V>
void expect_same(ShardT& shard, const char* where, const char* name, V value);

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
inline std::uint64_t hash(const std::vector<Index>& list) {
  return hash(list.size(), list.data(), list.size() * sizeof(Index));
}
inline std::uint64_t hash(const Placement& p) {
  return hash(hash(p.shard_of), p.copies.data(), p.copies.size() * sizeof(Copy));
}
/// Returns a hash of the extra inputs of a gate (router) that must be the same on all shards: the seed and the step of
/// its noise, k, the stage of a DistilledTop1 (`distilled`), the length of sequences, and the temperature tau.
std::uint64_t number_of_extra(const auto& extra) {
  std::uint64_t number = 0;
  const auto add = [&number](auto value) {
    if constexpr (std::is_arithmetic_v<decltype(value)>) number = hash(number, &value, sizeof value);
  };
  const auto one = [&add](const auto& of) {
    if constexpr (requires { of.random->seed; }) {
      add(of.random.has_value());
      add(of.random.value_or(Random{}).seed.value);
      add(of.random.value_or(Random{}).step);
    }
    if constexpr (requires { of.k; }) add(of.k);
    if constexpr (requires { of.distilled; }) add(of.distilled);
    if constexpr (requires { of.length; }) add(of.length);
    if constexpr (requires { of.tau.value_or(0.0); }) add(of.tau.value_or(0.0));
  };
  one(extra);
  if constexpr (requires { extra.scores, extra.mixing, extra.selection; }) {
    one(extra.scores);
    one(extra.mixing);
    one(extra.selection);
  }
  return number;
}
struct Numbers {
  std::vector<std::uint64_t> found{};
  std::vector<std::string> names{};

  void add(const Name& at, std::uint64_t h) {
    found.push_back(h);
    names.push_back(at.str());
  }
};
/// A visitor that computes a hash of every tensor of a pack (a struct of named tensors). If all shards hold a tensor,
/// its extents and values are hashed. If the tensor belongs to distributed experts, only its extents after the first
/// are hashed. The assignment of experts to shards gets a hash too.
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
    if (p.deal) add(Name{&at, "placement"}, hash(p.deal->placement));
    auto one = [&](const Name& name, const auto& t) { add(name, extents(t, 1)); };
    detail_::pack::visit<false>(one, at, p.part);
  }
};

/// The message that starts a comparison between shards. It contains the count of the numbers that a shard compares, and
/// a hash of `where`, the name of the calling function. The message is padded to be longer than other small messages.
/// If a shard makes a different call, it therefore sends a message of a different size, and the error is detected.
struct Call {
  std::uint64_t count, where, mark[5];
  static Call of(std::size_t numbers, const char* where) { return {numbers, hash(0, where, std::strlen(where)), {}}; }
  friend bool operator==(const Call&, const Call&) = default;
};

/// Compares a list of numbers, for example hashes of tensors, between all shards.
/// @throws ArgumentError on all shards unless all shards make the same call with the same numbers
void expect_numbers(auto& shard, const char* where, const Numbers& mine) {
  const std::vector<Call> calls = shard.all_gather(Call::of(mine.found.size(), where));
  const auto throw_other = [&](const std::string& name, std::size_t other) {
    expect(false, where, name, "the same value on all shards",
           Joined{"a different one on shard ", other, " than on shard 0"});
  };
  for (std::size_t j = 0; j < calls.size(); ++j) {
    expect(calls[j].where == calls[0].where, where, "call", "the same call on all shards",
           Joined{"a different one on shard ", j, " than on shard 0: the shards do not run the same program"});
    if (calls[j].count != calls[0].count) throw_other(mine.names.empty() ? "tensors" : mine.names[0], j);
  }
  const std::vector<std::uint64_t> all = shard.all_gather(mine.found);
  for (std::size_t i = 0; i < mine.found.size(); ++i)
    for (std::size_t j = 0; j < calls.size(); ++j)
      if (all[j * mine.found.size() + i] != all[i]) throw_other(mine.names[i], j);
}

}  // namespace same

template <class ShardT, class M, class P>
void expect_same(ShardT& shard, const M& memory, const char* where, const P& pack) {
  if (shard.count() == 1) return;
  same::NumbersOfPack<M> numbers(memory);
  for_each_tensor(numbers, pack);
  optim::for_each_counter(
      [&numbers](const Name& at, const auto& number) {
        const auto kept = optim::kept(number);
        numbers.add(at, same::hash(0, &kept, sizeof kept));
      },
      Name{}, pack);
  same::expect_numbers(shard, where, numbers);
}
template <class ShardT, class V>
void expect_same(ShardT& shard, const char* where, const char* name, const std::vector<V>& list) {
  same::Numbers numbers;
  const Name all{nullptr, name};
  const std::size_t count = list.size();
  numbers.add(all, same::hash(0, &count, sizeof count));
  for (std::size_t i = 0; i < count; ++i) numbers.add(Name{&all, static_cast<Index>(i)}, same::hash(list[i]));
  same::expect_numbers(shard, where, numbers);
}
template <class ShardT, class V>
requires std::is_arithmetic_v<V>
void expect_same(ShardT& shard, const char* where, const char* name, V value) {
  if constexpr (std::is_same_v<V, long double>) {  // a long double has padding bytes, which would change the hash
    expect_same(shard, where, name, static_cast<double>(value));
  } else {
    same::Numbers numbers;
    numbers.add(Name{nullptr, name}, same::hash(0, &value, sizeof value));
    same::expect_numbers(shard, where, numbers);
  }
}

}  // namespace gatefold::dist
