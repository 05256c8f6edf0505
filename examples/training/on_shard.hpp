#pragma once

#include <algorithm>
#include <filesystem>
#include <gatefold/distributed.hpp>
#include <gatefold/gatefold.hpp>
#include <gatefold/io.hpp>
#include <memory>
#include <vector>

#include "shard_record.hpp"

namespace training {

using namespace gatefold;

/// The place (see place.hpp) of a model that is trained on shards of a batch, with the same members as OneProcess.
///
/// The experts are spread over the shards. Each shard has a part of every batch.
template <class ShardT>
struct OnShard {
  ShardT* shard;
  ShardRecord record{};
  explicit OnShard(ShardT* of) : shard(of) {}

  auto branch(const auto& mixture) const { return dist::ExpertParallel{mixture, shard}; }
  auto loss(const auto& of_outputs) const { return dist::LossOfShards{of_outputs, shard}; }
  auto optimizer(const auto& of_params) const { return dist::DataParallel{of_params, shard}; }
  static const auto& inner(const auto& of_outputs) { return of_outputs.loss; }

  bool reports() const { return shard->index() == 0; }
  dist::Range part_of(Index things) const { return shard->part_of(things); }
  Index sum(Index mine) const { return shard->sum(mine); }
  /// Returns the random numbers of this shard. Dropout draws by the index of an item within its shard, so each shard
  /// needs different random numbers.
  Random noise(Random random) const { return random.at(shard->index()); }
  /// Runs f(), which trains on a part of the batch. Records the times of f() and the loads of the experts.
  auto part_of_step(const auto& trainer, const auto& f) { return record.part_of_step(*shard, trainer, f); }
  void rebalance(auto& trainer) { record.rebalance(*shard, trainer); }
  std::vector<nlohmann::ordered_json> lines() const { return record.lines(*shard); }
  /// Sends the rows of y that each shard has computed to all other shards.
  /// @param y     [all, D] in: the rows `mine`, which this shard has computed; out: all rows
  void gather(Tensor<float, 2, Cpu>& y, Index sequences, const dist::Range& mine) const {
    const Index width = y.extent(1), length = y.extent(0) / std::max<Index>(sequences, 1);
    std::vector<Index> counts;
    for (Index j = 0; j < shard->count(); ++j)
      counts.push_back(dist::Range::of(sequences, j, shard->count()).count * length * width);
    const std::vector<float> part(y.data() + mine.first * width, y.data() + (mine.first + mine.count) * width);
    shard->template all_gather<float>(part.data(), counts, y.data());
  }
  Index parameters(const auto& params) const {
    Count count;
    for_each_tensor(count, params);
    return count.of_all + shard->sum(count.of_shard);
  }
  /// Collects the parameters of all shards. On shard 0, calls f(layer, params) with the model without shards and these
  /// parameters, and returns the result. On other shards, returns a default value.
  auto in_one_process(const auto& trainer, const auto& model, const auto& f) const {
    const auto layer = as_layer<float, Cpu>(model);
    auto params = init_params<float, Cpu>(layer, trainer.context(), Seed{});
    dist::copy_whole(*shard, trainer.context(), trainer.params, params);
    return reports() ? f(layer, params) : decltype(f(layer, params)){};
  }
  void save(const std::filesystem::path& path, const auto& run, const io::Metadata& metadata) const {
    dist::save_checkpoint(*shard, path, run, metadata);
  }
  std::unique_ptr<dist::AsyncCheckpoint<ShardT>> checkpoint() const {
    return std::make_unique<dist::AsyncCheckpoint<ShardT>>(*shard);
  }
  io::Metadata load(const std::filesystem::path& path, auto& run) const {
    return dist::load_checkpoint(*shard, path, run);
  }

 private:
  struct Count {
    Index of_all = 0, of_shard = 0;
    void operator()(const Name&, const auto& t) { of_all += t.size(); }
    void sharded(const Name&, const auto& part) { of_shard += count_values(part); }
  };
};

}  // namespace training
