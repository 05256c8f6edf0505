#pragma once

#include <filesystem>
#include <gatefold/dist/shards.hpp>
#include <gatefold/gatefold.hpp>
#include <gatefold/io.hpp>

/// Where a network is trained: in one process; on_shard.hpp has the other place.
namespace language {

using namespace gatefold;

/// What a network is made of, as it is.
struct OneProcess {
  const auto& branch(const auto& mixture) const { return mixture; }
  const auto& loss(const auto& of_outputs) const { return of_outputs; }
  const auto& optimizer(const auto& of_params) const { return of_params; }
  /// The loss inside.
  static const auto& inner(const auto& of_outputs) { return of_outputs; }

  dist::Range part_of(Index things) const { return {0, things}; }
  Random noise(Random random) const { return random; }
  /// Rows of all, which stand there already.
  void gather(Tensor<float, 2, Cpu>&, Index, const dist::Range&) const {}
  Index parameters(const auto& params) const { return count_values(params); }
  void save(const std::filesystem::path& path, const auto& run, const io::Metadata& metadata) const {
    save_checkpoint(path, run, metadata);
  }
  void load(const std::filesystem::path& path, auto& run) const { load_checkpoint(path, run); }
};

}  // namespace language
