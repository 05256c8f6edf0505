#pragma once

#include <filesystem>
#include <gatefold/dist/shards.hpp>
#include <gatefold/io.hpp>
#include <gatefold/policies.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

/// Where a model is trained: in one process; on_shard.hpp has the other place.
namespace training {

using namespace gatefold;

/// What a model is made of, as it is.
struct OneProcess {
  const auto& branch(const auto& mixture) const { return mixture; }
  const auto& loss(const auto& of_outputs) const { return of_outputs; }
  const auto& optimizer(const auto& of_params) const { return of_params; }
  /// The loss inside.
  static const auto& inner(const auto& of_outputs) { return of_outputs; }

  bool reports() const { return true; }
  dist::Range part_of(Index things) const { return {0, things}; }
  Index sum(Index mine) const { return mine; }
  Random noise(Random random) const { return random; }
  /// f() is a part of a step.
  auto part_of_step(const auto&, const auto& f) const { return f(); }
  void rebalance(auto&) const {}
  std::vector<nlohmann::ordered_json> lines() const { return {}; }
  /// Rows of all, which stand there already.
  void gather(auto&, Index, const dist::Range&) const {}
  Index parameters(const auto& params) const { return count_values(params); }
  /// f(layer, params) of the model as it is trained.
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
