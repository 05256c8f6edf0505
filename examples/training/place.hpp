#pragma once

#include <filesystem>
#include <gatefold/distributed/shards.hpp>
#include <gatefold/io.hpp>
#include <gatefold/policies.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

/// A place is a type that decides where a model is trained: OneProcess in one process, OnShard (on_shard.hpp) on
/// shards.
namespace training {

using namespace gatefold;

/// The place for training in one process. It uses model, loss and optimizer unchanged.
struct OneProcess {
  const auto& branch(const auto& mixture) const { return mixture; }
  const auto& loss(const auto& of_outputs) const { return of_outputs; }
  const auto& optimizer(const auto& of_params) const { return of_params; }
  /// Returns the loss that was passed to loss(). Here, this is the argument. OnShard takes it out of a LossOfShards.
  static const auto& inner(const auto& of_outputs) { return of_outputs; }

  bool reports() const { return true; }
  dist::Range part_of(Index things) const { return {0, things}; }
  Index sum(Index mine) const { return mine; }
  Random noise(Random random) const { return random; }
  /// Runs f(), which trains on a part of the batch.
  auto part_of_step(const auto&, const auto& f) const { return f(); }
  void rebalance(auto&) const {}
  std::vector<nlohmann::ordered_json> lines() const { return {}; }
  /// Does nothing, because this process has computed all rows of y.
  void gather(auto&, Index, const dist::Range&) const {}
  Index parameters(const auto& params) const { return count_values(params); }
  /// Calls f(layer, params) with the trained model.
  auto in_one_process(const auto& trainer, const auto&, const auto& f) const {
    return f(trainer.layer(), trainer.params);
  }
  void save(const std::filesystem::path& path, const auto& run, const io::Metadata& metadata) const {
    save_checkpoint(path, run, metadata);
  }
  std::unique_ptr<AsyncCheckpoint> checkpoint() const { return std::make_unique<AsyncCheckpoint>(); }
  io::Metadata load(const std::filesystem::path& path, auto& run) const { return load_checkpoint(path, run); }
};

}  // namespace training
