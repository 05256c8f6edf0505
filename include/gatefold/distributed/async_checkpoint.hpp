#pragma once

#include <chrono>
#include <exception>
#include <filesystem>
#include <future>
#include <memory>
#include <utility>

#include "gatefold/backend/one_thread.hpp"
#include "gatefold/distributed/checkpoint.hpp"
#include "gatefold/io/snapshot.hpp"

namespace gatefold::dist {

/// Saves checkpoints of a run on several shards in the background: every shard writes its part of the files in a
/// separate thread.
///
///     dist::AsyncCheckpoint checkpoint(shard);
///     checkpoint.save("run.safetensors", trainer);   // returns when the state is copied
///     ... training steps ...
///     checkpoint.poll();                             // sometimes: renames the files if all shards have written them
///     checkpoint.wait();                             // returns when the files are complete
///
/// All shards make these calls together and in the same order. Shards communicate only inside these calls. The files
/// are renamed into place in the first call after the last shard has written its part. An error on the thread of a
/// shard is thrown on all shards by the next call that waits; a program that catches it can continue training. The
/// destructor also waits and throws. If an exception destroys the object, the destructor does not wait or throw, and
/// the files do not appear.
template <class ShardT>
class AsyncCheckpoint {
 public:
  explicit AsyncCheckpoint(ShardT& shard) : shard_(shard) {}
  AsyncCheckpoint(const AsyncCheckpoint&) = delete;
  AsyncCheckpoint& operator=(const AsyncCheckpoint&) = delete;
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
    using C = std::remove_cvref_t<decltype(run.context())>;
    const auto device = run.context().here();
    wait();
    expect_same(shard_, memory_of(run.context()), "AsyncCheckpoint.save", run);
    saving::expect_same_options(shard_, "AsyncCheckpoint.save", options);
    TensorsHere<C> here(shard_, "AsyncCheckpoint.save", run, TensorsHere<C>::Takes::part);
    snapshot_.take(&run.context(), here.sources);
    auto begun = saving::begin(shard_, path, run, metadata, std::move(here.list), options);
    writing_ =
        std::async(std::launch::async, [this, save = begun.save.get()] { save->write(nullptr, snapshot_.sources()); });
    begun_ = std::move(begun);
  }
  /// Returns whether the last checkpoint is complete, without waiting for a thread that still writes. If all shards
  /// have written their parts, renames the files into place first.
  bool poll() {
    const OneThread::Scope alone(alone_);
    if (!begun_.save) return true;
    const bool written = writing_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
    if (shard_.sum(Index(written)) < shard_.count()) return false;
    wait();
    return true;
  }
  /// Waits until the checkpoint has finished. If it throws, the old files are unchanged.
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
