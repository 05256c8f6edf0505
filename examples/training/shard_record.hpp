#pragma once

#include <chrono>
#include <cstddef>
#include <gatefold/distributed.hpp>
#include <nlohmann/json.hpp>
#include <vector>

namespace training {

using gatefold::Index;

/// Measures the steps of a shard: the time to compute, to wait for other shards and to move bytes, and the slots of
/// each expert.
class ShardRecord {
 public:
  /// Runs f(), which trains on a part of the batch. Adds the times of f(), and the loads of the trainer's mixtures, to
  /// this record.
  template <class ShardT, class TrainerT, class F>
  auto part_of_step(const ShardT& shard, const TrainerT& trainer, const F& f) {
    const gatefold::dist::Traffic before = shard.traffic();
    const auto begin = std::chrono::steady_clock::now();
    const auto result = f();
    const std::chrono::duration<double> whole = std::chrono::steady_clock::now() - begin;
    const gatefold::dist::Traffic& now = shard.traffic();
    waiting_ += now.waiting - before.waiting;
    moving_ += now.seconds - before.seconds - (now.waiting - before.waiting);
    computing_ += whole.count() - (now.seconds - before.seconds);
    exchanges_ += now.exchanges - before.exchanges;
    given_ += static_cast<Index>(now.given - before.given);
    slots_.add(shard, trainer);
    since_moved_.add(shard, trainer);
    return result;
  }
  /// Moves experts between shards, so that the new placement balances the loads counted since the last call.
  template <class ShardT, class TrainerT>
  void rebalance(ShardT& shard, TrainerT& trainer) {
    moved_ += gatefold::dist::rebalance(shard, trainer, since_moved_).moved;
  }

  /// Returns one JSON object for each shard, but only on shard 0. All shards must call lines() together.
  ///
  ///     {"shard":0,"rank":0,"computing":1.2,"waiting":0.3,"moving":0.1,"exchanges":960,"given":123456,
  ///      "experts_moved":2,"slots":[[12,0,…],…]}
  ///
  /// Times are in seconds, `given` in bytes. `slots` has a list for each layer, with 0 for experts of other shards.
  template <class ShardT>
  std::vector<nlohmann::ordered_json> lines(ShardT& shard) const {
    std::vector<double> mine{static_cast<double>(shard.rank()),
                             computing_,
                             waiting_,
                             moving_,
                             static_cast<double>(exchanges_),
                             static_cast<double>(given_),
                             static_cast<double>(moved_)};
    const std::size_t numbers = mine.size();
    for (const auto& layer : slots_.slots) mine.insert(mine.end(), layer.begin(), layer.end());
    const std::vector<double> all = shard.all_gather(mine);
    std::vector<nlohmann::ordered_json> lines;
    for (Index j = 0; shard.index() == 0 && j < shard.count(); ++j) {
      const double* of = all.data() + static_cast<std::size_t>(j) * mine.size();
      const auto whole = [&](std::size_t i) { return static_cast<Index>(of[i]); };
      nlohmann::ordered_json line{{"shard", j},        {"rank", whole(0)},         {"computing", of[1]},
                                  {"waiting", of[2]},  {"moving", of[3]},          {"exchanges", whole(4)},
                                  {"given", whole(5)}, {"experts_moved", whole(6)}};
      line["slots"] = nlohmann::ordered_json::array();
      std::size_t next = numbers;
      for (const auto& layer : slots_.slots) {
        std::vector<Index> of_layer;
        for (std::size_t e = 0; e < layer.size(); ++e) of_layer.push_back(whole(next++));
        line["slots"].push_back(of_layer);
      }
      lines.push_back(std::move(line));
    }
    return lines;
  }

 private:
  double computing_ = 0, waiting_ = 0, moving_ = 0;  // seconds
  Index exchanges_ = 0, given_ = 0, moved_ = 0;
  gatefold::dist::ExpertLoads slots_{}, since_moved_{};
};

}  // namespace training
