#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gatefold/dist/collectively.hpp"
#include "gatefold/dist/memory.hpp"
#include "gatefold/dist/same.hpp"
#include "gatefold/dist/tensors_here.hpp"
#include "gatefold/io/safetensors.hpp"
#include "gatefold/train/checkpoint.hpp"

/// Checkpoints of a run on shards: the files of train/checkpoint.hpp, whatever wrote them. Outside the umbrella: they
/// need nlohmann-json (gatefold::io).
namespace gatefold::dist {

namespace saving {

/// Files that are on their way, and a number of what shard 0 has named them.
struct Begun {
  std::unique_ptr<io::safetensors::Save> save{};
  std::uint64_t number = 0;
};
/// Shard 0 makes the files, of which the others learn where they are. All call it together.
/// @param list  of this shard
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
/// The files take their places when all have written, which write() does, or waits for. All call it together.
/// @throws ArgumentError on all shards where one waits for others: of two that are on their way, say
template <class ShardT, class WriteF>
void commit(ShardT& shard, const Begun& begun, const WriteF& write) {
  same::Numbers files;
  files.add(Name{nullptr, "files that are waited for"}, begun.number);
  same::expect_numbers(shard, "checkpoint", files);
  collectively(shard, write);
  const std::uint64_t content = shard.sum(begun.save->content());
  collectively(shard, [&] {
    if (shard.index() == 0) begun.save->commit(content);
  });
}
/// @throws ArgumentError on all shards unless they have read the same numbers of a run, and texts beside them
template <class ShardT>
void expect_same_metadata(ShardT& shard, const char* where, const io::Metadata& metadata) {
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
/// @throws ArgumentError on all shards unless they write files of the same size
template <class ShardT>
void expect_same_options(ShardT& shard, const char* where, const io::SaveOptions& options) {
  expect_same(shard, where, "max_file_bytes", static_cast<double>(options.max_file_bytes));
}

}  // namespace saving

/// save_checkpoint of a run on shards: the files of a single process with all experts. Every shard writes the rows of
/// its own experts, and its part of what all hold, into files that shard 0 makes and puts in their places; they are
/// there, whole, when any shard returns.
/// @param metadata  that of shard 0 counts
/// @throws ArgumentError where they hold other values of what all hold: then something reached one alone; as
///         save_checkpoint, and FileError where a process does not see the file that shard 0 has made: the path is to
///         lie on a file system that all processes share. What went wrong on one shard all throw, and are in step:
///         what was there is untouched, and who catches it trains on
/// @cost   as save_checkpoint, of what a shard writes: no expert crosses, and no shard holds another's
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

/// load_checkpoint of a run on shards, from what any number of shards has written, or one process.
/// @throws as load_checkpoint, on all shards what went wrong on one: nothing has changed then on any, and they are in
///         step; ArgumentError where processes have read different files: their metadata show it, before anything is
///         written, or the tensors of what all hold
/// @cost   every shard reads its own experts and what all hold, and has that in host memory meanwhile
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
