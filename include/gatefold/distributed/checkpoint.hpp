#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gatefold/distributed/collectively.hpp"
#include "gatefold/distributed/expect_same.hpp"
#include "gatefold/distributed/memory.hpp"
#include "gatefold/distributed/tensors_here.hpp"
#include "gatefold/io/safetensors.hpp"
#include "gatefold/train/checkpoint.hpp"

/// Checkpoints of a run on several shards. The files have the format of train/checkpoint.hpp and do not depend on the
/// number of shards. The umbrella header does not include this header, because it needs nlohmann-json (`gatefold::io`).
namespace gatefold::dist {

namespace saving {

/// A save that has begun but not finished: its open files, and a hash that identifies these files on all shards.
struct Begun {
  std::unique_ptr<io::safetensors::Save> save{};
  std::uint64_t number = 0;
};
/// Begins a save: creates the files on shard 0 and opens them on the other shards. All shards must call it together.
/// @param list  the tensors of this shard
template <class ShardT, class R>
Begun begin(ShardT& shard, const std::filesystem::path& path, const R& run, const io::Metadata& metadata,
            std::vector<io::safetensors::Entry> list, const io::SaveOptions& options) {
  io::safetensors::Layout layout;
  std::unique_ptr<io::safetensors::Save> save;
  collectively(shard, [&] {
    layout = io::safetensors::layout_of(gatefold::detail_::checkpoint::with_counters(metadata, run), std::move(list),
                                        options);
    if (shard.index() == 0) save = std::make_unique<io::safetensors::Save>(path, layout);
  });
  std::string begun = save ? save->begun() : "";
  std::vector<Index> counts(static_cast<std::size_t>(shard.count()));
  const auto length = static_cast<Index>(begun.size());
  shard.all_gather(&length, Index(1), counts.data());
  std::string told(static_cast<std::size_t>(counts[0]), '\0');
  shard.template all_gather<char>(begun.data(), counts, told.data());
  collectively(shard, [&] {
    if (!save) save = std::make_unique<io::safetensors::Save>(path, std::move(layout), told);
  });
  return {std::move(save), same::hash(0, told.data(), told.size())};
}
/// Finishes a save: calls write() on every shard, then renames the files into place on shard 0. write() writes the part
/// of its shard, or waits until a thread has written it. All shards must call it together.
/// @throws ArgumentError on all shards if they finish different saves, for example because two checkpoints are
///         unfinished
template <class ShardT, class WriteF>
void commit(ShardT& shard, const Begun& begun, const WriteF& write) {
  same::Numbers files;
  files.add(Name{nullptr, "the save in progress"}, begun.number);
  same::expect_numbers(shard, "checkpoint", files);
  collectively(shard, write);
  const std::uint64_t content = shard.sum(begun.save->content());
  collectively(shard, [&] {
    if (shard.index() == 0) begun.save->commit(content);
  });
}
/// Checks that all shards have read the same metadata from a checkpoint.
/// @throws ArgumentError on all shards if the counters of the run (for example the number of steps) or the other
///         metadata differ
void expect_same_metadata(auto& shard, const char* where, const io::Metadata& metadata) {
  same::Numbers numbers;
  std::uint64_t texts = 0;
  for (const auto& [key, value] : metadata) {
    const std::uint64_t number =
        same::hash(same::hash(value.size(), value.data(), value.size()), key.data(), key.size());
    if (key.starts_with(gatefold::detail_::checkpoint::prefix))
      numbers.add(Name{nullptr, std::string_view(key).substr(gatefold::detail_::checkpoint::prefix.size())}, number);
    else
      texts = same::hash(texts, &number, sizeof number);
  }
  numbers.add(Name{nullptr, "metadata"}, texts);
  same::expect_numbers(shard, where, numbers);
}
/// Checks that all shards save with the same options.
/// @throws ArgumentError on all shards unless `max_file_bytes` is the same on every shard
void expect_same_options(auto& shard, const char* where, const io::SaveOptions& options) {
  expect_same(shard, where, "max_file_bytes", static_cast<double>(options.max_file_bytes));
}

}  // namespace saving

/// Saves a checkpoint of a run on several shards. The files are the same as from a single process with all experts.
/// Shard 0 creates the files. Every shard writes the rows of its own experts, and a part of the tensors that all shards
/// hold. Then shard 0 renames the files into place. The files are complete when the call returns on any shard.
/// @param metadata  further strings to store with the tensors. Only the strings of shard 0 are written
/// @throws ArgumentError if the shards hold different values of a tensor that all of them hold, for example because
///         only one shard has changed it
/// @throws FileError if a process cannot open the files that shard 0 has created; the path must be on a file system
///         that all processes share
/// @throws the errors of gatefold::save_checkpoint. An error on one shard is thrown on all shards, so that they stay in
///         step. The old files are unchanged then, and a program that catches the error can continue training
/// @cost   the cost of gatefold::save_checkpoint for the part of this shard. No expert is transferred, and no shard
///         holds the experts of another shard
template <class ShardT, class R>
void save_checkpoint(ShardT& shard, const std::filesystem::path& path, const R& run, const io::Metadata& metadata = {},
                     const io::SaveOptions& options = {}) {
  static_assert(gatefold::detail_::checkpoint::check_run<R>());
  using C = std::remove_cvref_t<decltype(run.context())>;
  const auto device = run.context().here();
  expect_same(shard, memory_of(run.context()), "save_checkpoint", run);
  saving::expect_same_options(shard, "save_checkpoint", options);
  TensorsHere<C> here(shard, "save_checkpoint", run, TensorsHere<C>::Takes::part);
  const auto begun = saving::begin(shard, path, run, metadata, std::move(here.list), options);
  saving::commit(shard, begun, [&] { begun.save->write(&run.context(), here.sources); });
}

/// Loads a checkpoint into a run on several shards. The files can be written by any number of shards, or by one
/// process.
/// @throws the errors of gatefold::load_checkpoint. An error on one shard is thrown on all shards. The run is then
///         unchanged on every shard, and the shards stay in step
/// @throws ArgumentError if processes have read different files. Different metadata are detected before a tensor is
///         written; different values of tensors that all shards hold are detected afterwards
/// @cost   every shard reads its own experts and the tensors that all shards hold, and has them in host memory
///         meanwhile
template <class ShardT, class R>
io::Metadata load_checkpoint(ShardT& shard, const std::filesystem::path& path, R& run) {
  static_assert(gatefold::detail_::checkpoint::check_run<R>());
  using C = std::remove_cvref_t<decltype(run.context())>;
  const auto device = run.context().here();
  const TensorsHere<C> here(shard, "load_checkpoint", run, TensorsHere<C>::Takes::all);
  io::safetensors::Data data;
  collectively(shard, [&] {
    gatefold::detail_::checkpoint::expect_counters(path, run);
    data = io::safetensors::read_entries(path, true, here.list);
  });
  saving::expect_same_metadata(shard, "load_checkpoint", data.metadata);
  here.fill(run.context(), data);
  io::Metadata metadata = gatefold::detail_::checkpoint::take_counters(path, std::move(data.metadata), run);
  expect_same(shard, memory_of(run.context()), "load_checkpoint", run);
  return metadata;
}

}  // namespace gatefold::dist
