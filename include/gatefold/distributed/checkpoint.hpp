#pragma once

#include <chrono>
#include <cstddef>
#include <exception>
#include <filesystem>
#include <future>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gatefold/distributed/expect_same.hpp"
#include "gatefold/distributed/shards.hpp"
#include "gatefold/distributed/tensors_here.hpp"
#include "gatefold/train/checkpoint.hpp"

/// Checkpoints of a run on several shards; a run is, for example, a Trainer. All shards must call the functions
/// together. AsyncCheckpoint saves in the background. The files have the format of train/checkpoint.hpp and do not
/// depend on the number of shards. The umbrella header does not include this header, because it needs nlohmann-json
/// (`gatefold::io`).
namespace gatefold::dist {

/// Saves a checkpoint of a run on several shards. The files equal the files that one process with all experts writes.
/// Shard 0 creates the files. Every shard writes the rows of its own experts, and a part of the tensors that all shards
/// hold. Then shard 0 renames the files into place. The files are complete when the call returns on any shard.
/// @param metadata  further strings to store with the tensors. Only the strings of shard 0 are written
/// @throws ArgumentError if the shards hold different values of a tensor that all of them hold, for example because
///         only one shard has changed it
/// @throws FileError if a process cannot open the files that shard 0 has created; the path must be on a file system
///         that all processes share
/// @throws the errors of gatefold::save_checkpoint. An error on one shard is thrown on all shards. The old files are
///         unchanged then, and a program that catches the error can continue training on all shards
/// @cost   the cost of gatefold::save_checkpoint for the part of this shard. No expert is transferred, and no shard
///         holds the experts of another shard
template <class ShardT, class R>
void save_checkpoint(ShardT& shard, const std::filesystem::path& path, const R& run, const io::Metadata& metadata = {},
                     const io::SaveOptions& options = {});

/// Loads a checkpoint into a run on several shards. The files can be written by any number of shards, or by one
/// process.
/// @throws the errors of gatefold::load_checkpoint. An error on one shard is thrown on all shards. The run is then
///         unchanged on every shard
/// @throws ArgumentError if processes have read different files. Different metadata are detected before a tensor of the
///         run changes. Different values of tensors that all shards hold are detected after loading; the run has then
///         changed
/// @cost   every shard reads its own experts and the tensors that all shards hold, and holds them in host memory until
///         the call returns
template <class ShardT, class R>
io::Metadata load_checkpoint(ShardT& shard, const std::filesystem::path& path, R& run);

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
  const std::vector<Index> counts = shard.all_gather(static_cast<Index>(begun.size()));
  std::string told(static_cast<std::size_t>(counts[0]), '\0');
  shard.template all_gather<char>(begun.data(), counts, told.data());
  collectively(shard, [&] {
    if (!save) save = std::make_unique<io::safetensors::Save>(path, std::move(layout), told);
  });
  return {std::move(save), same::hash(0, told.data(), told.size())};
}
/// Finishes a save: calls write() on every shard, then renames the files into place on shard 0. write() writes the part
/// of its shard, or waits until a thread has written this part. All shards must call commit together.
/// @throws ArgumentError on all shards if the shards finish different saves. This can happen if two checkpoints are
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
/// Returns the part of the tensors of a run that this shard saves.
/// @throws ArgumentError on all shards unless all shards hold the same run and save with the same options
template <class ShardT, class R, class C = std::remove_cvref_t<decltype(std::declval<const R&>().context())>>
TensorsHere<C> part_of(ShardT& shard, const char* where, const R& run, const io::SaveOptions& options) {
  expect_same(shard, memory_of(run.context()), where, run);
  expect_same(shard, where, "max_file_bytes", static_cast<double>(options.max_file_bytes));
  return {shard, where, run, TensorsHere<C>::Takes::part};
}

}  // namespace saving

template <class ShardT, class R>
void save_checkpoint(ShardT& shard, const std::filesystem::path& path, const R& run, const io::Metadata& metadata,
                     const io::SaveOptions& options) {
  static_assert(gatefold::detail_::checkpoint::check_run<R>());
  const auto device = run.context().here();
  auto here = saving::part_of(shard, "save_checkpoint", run, options);
  const auto begun = saving::begin(shard, path, run, metadata, std::move(here.list), options);
  saving::commit(shard, begun, [&] { begun.save->write(&run.context(), here.sources); });
}

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

/// Saves checkpoints of a run on several shards in the background: every shard writes its part of the files in a
/// separate thread.
///
///     dist::AsyncCheckpoint checkpoint(shard);
///     checkpoint.save("run.safetensors", trainer);   // returns when the state is copied
///     ... training steps ...
///     checkpoint.poll();                             // now and then: renames the files if all shards have written
///     checkpoint.wait();                             // returns when the files are complete
///
/// All shards make these calls together and in the same order. Shards communicate only inside these calls. The files
/// are renamed into place in the first call after the last shard has written its part. If the thread of a shard has
/// failed, this call throws the error on all shards instead. A program that catches the error can continue training.
/// The destructor also waits and throws. If an exception destroys the object, the destructor waits only for the thread
/// of this shard and throws nothing, and the files do not appear.
template <class ShardT>
class AsyncCheckpoint {
 public:
  explicit AsyncCheckpoint(ShardT& shard) : shard_(shard) {}
  ~AsyncCheckpoint() noexcept(false) {
    if (std::uncaught_exceptions() == exceptions_) wait();
  }

  /// Starts a checkpoint: waits for the previous checkpoint, copies the state, and returns while threads write the
  /// files.
  /// @throws the errors of wait() if the previous checkpoint has failed; then no new checkpoint starts. Otherwise
  ///         throws the errors of dist::save_checkpoint
  /// @cost   the cost of dist::save_checkpoint without the writing, and a copy of this shard's part in host memory. The
  ///         memory stays allocated for the next call
  template <class R>
  void save(const std::filesystem::path& path, const R& run, const io::Metadata& metadata = {},
            const io::SaveOptions& options = {}) {
    const OneThread::Scope alone(alone_);
    static_assert(gatefold::detail_::checkpoint::check_run<R>());
    const auto device = run.context().here();
    wait();
    auto here = saving::part_of(shard_, "AsyncCheckpoint.save", run, options);
    snapshot_.take(&run.context(), here.sources);
    auto begun = saving::begin(shard_, path, run, metadata, std::move(here.list), options);
    writing_ =
        std::async(std::launch::async, [this, save = begun.save.get()] { save->write(nullptr, snapshot_.sources()); });
    begun_ = std::move(begun);
  }
  /// Returns whether the last checkpoint is complete, without waiting for a thread that still writes. If all shards
  /// have written their parts, renames the files into place first. Returns true if there was no save.
  /// @throws the errors of wait()
  bool poll() {
    const OneThread::Scope alone(alone_);
    if (!begun_.save) return true;
    const bool written = writing_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
    if (shard_.sum(Index(written)) < shard_.count()) return false;
    wait();
    return true;
  }
  /// Waits until the checkpoint has finished. If wait() throws, the old files are unchanged.
  /// @throws the errors of dist::save_checkpoint; ArgumentError if shards wait for different checkpoints
  void wait() {
    const OneThread::Scope alone(alone_);
    if (!begun_.save) return;
    const auto begun = std::move(begun_);  // moved out first: the checkpoint counts as finished even if commit throws
    writing_.wait();                       // the background thread may still write the files
    saving::commit(shard_, begun, [&] { writing_.get(); });
  }

 private:
  OneThread alone_{"AsyncCheckpoint", "one AsyncCheckpoint"};
  int exceptions_ = std::uncaught_exceptions();
  ShardT& shard_;
  io::safetensors::Snapshot snapshot_{};
  saving::Begun begun_{};
  std::future<void> writing_{};  // the last member: it is destroyed first, because its thread uses the others
};

}  // namespace gatefold::dist
