#pragma once

#include <filesystem>

#include "gatefold/dist/memory.hpp"
#include "gatefold/dist/same.hpp"
#include "gatefold/dist/whole.hpp"
#include "gatefold/io/safetensors.hpp"
#include "gatefold/train/checkpoint.hpp"

/// Checkpoints of a run on shards: the files of train/checkpoint.hpp, whatever wrote them. Outside the umbrella: they
/// need nlohmann-json (gatefold::io).
namespace gatefold::dist {

/// save_checkpoint of a run on shards: one file, that of a single process with all experts. Shard 0 writes it; it is
/// there, whole, when any shard returns.
/// @throws ArgumentError on all shards where they hold other values of what all hold: then something reached one alone;
///         as save_checkpoint on shard 0, and DeviceError on the others
/// @cost   shard 0 takes and holds all experts and their optimizer's state for the time of writing
template <class ShardT, class R>
void save_checkpoint(ShardT& shard, const std::filesystem::path& path, const R& run,
                     const io::Metadata& metadata = {}) {
  const auto here = run.context().here();
  const auto memory = memory_of(run.context());
  expect_same(shard, memory, "save_checkpoint", run);
  Whole<ShardT, decltype(memory_of(run.context())), const R> all(shard, memory, run, false);
  all.gather();
  if (shard.index() == 0) io::save(path, run.context(), checkpoint::with_counters(metadata, run), io::Part{"", all});
  shard.barrier();
}

/// load_checkpoint of a run on shards, from a file that any number of shards has written, or one process. Every
/// process reads it.
/// @throws as load_checkpoint
/// @cost   every shard reads the whole file, and holds all experts meanwhile
template <class ShardT, class R>
io::Metadata load_checkpoint(ShardT& shard, const std::filesystem::path& path, R& run) {
  const auto here = run.context().here();
  Whole<ShardT, decltype(memory_of(run.context())), R> all(shard, memory_of(run.context()), run, true);
  io::Metadata metadata = checkpoint::load(path, all, run);
  all.scatter();
  shard.barrier();  // a shard that could not read has stopped the others before anybody goes on
  return metadata;
}

}  // namespace gatefold::dist
