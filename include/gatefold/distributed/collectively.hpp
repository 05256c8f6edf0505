#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "gatefold/core/error.hpp"
#include "gatefold/core/types.hpp"

namespace gatefold::dist {

/// Runs f() on every shard and makes the shards agree on errors. If f throws FileError or ArgumentError on some shards,
/// every shard throws the error of the lowest-numbered of these shards. All shards therefore stay in step, and can
/// catch the error and continue. f must not exchange data with other shards.
/// @throws FileError or ArgumentError on all shards if f() throws it on a shard. Any other exception of f() is thrown
///         only on its shard, and ends the run
/// @cost   a small exchange
template <class ShardT, class F>
void collectively(ShardT& shard, const F& f) {
  enum Outcome : Index { done, file, argument };
  struct Told {
    Index outcome, length;
  };
  Told mine{done, 0};
  std::string sentence;
  const auto failed = [&](Outcome outcome, const char* what) {
    sentence = what;
    mine = {outcome, static_cast<Index>(sentence.size())};
  };
  try {
    f();
  } catch (const FileError& e) {
    failed(file, e.what());
  } catch (const ArgumentError& e) {
    failed(argument, e.what());
  }
  std::vector<Told> all(static_cast<std::size_t>(shard.count()));
  shard.all_gather(&mine, Index(1), all.data());
  std::size_t first = 0;
  while (first < all.size() && all[first].outcome == done) ++first;
  if (first == all.size()) return;
  std::vector<Index> counts(all.size());
  counts[first] = all[first].length;
  std::string said(static_cast<std::size_t>(counts[first]), '\0');
  shard.template all_gather<char>(sentence.data(), counts, said.data());
  if (all[first].outcome == file) throw FileError(said);
  throw ArgumentError(said);
}

}  // namespace gatefold::dist
