#pragma once

#include <chrono>
#include <exception>
#include <filesystem>
#include <future>
#include <memory>
#include <utility>

#include "gatefold/backend/one_thread.hpp"
#include "gatefold/dist/checkpoint.hpp"
#include "gatefold/io/snapshot.hpp"

namespace gatefold::dist {

/// gatefold::AsyncCheckpoint of a run on shards, each of which writes what it has on a thread of its own.
///
///     dist::AsyncCheckpoint checkpoint(shard);
///     checkpoint.save("run.safetensors", trainer);   // returns when the state is copied
///     ... steps ...
///     checkpoint.poll();                             // now and then: if all have written, the files are there
///     checkpoint.wait();                             // now they are there
///
/// Nothing crosses but within these calls, which all shards make together and in the same order, as all calls: the
/// files take their places in the first of them that comes after the last shard has written. What goes wrong on the
/// thread of a shard is thrown on all by the next call that waits, and who catches it trains on. The destructor is such
/// a call too, and throws, unless an exception is on its way: then the files do not appear.
template <class ShardT>
class AsyncCheckpoint {
 public:
  explicit AsyncCheckpoint(ShardT& shard) : shard_(shard) {}
  AsyncCheckpoint(const AsyncCheckpoint&) = delete;
  AsyncCheckpoint& operator=(const AsyncCheckpoint&) = delete;
  ~AsyncCheckpoint() noexcept(false) {
    if (std::uncaught_exceptions() == exceptions_) wait();
  }

  /// Begin a checkpoint, after the one before is there.
  /// @throws as wait() for the one before, then none is on its way; and as dist::save_checkpoint
  /// @cost   as dist::save_checkpoint but for the writing, and a copy of what this shard writes, in host memory, which
  ///         stays
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
  /// Whether none is on its way any more, on any shard.
  bool poll() {
    const OneThread::Scope alone(alone_);
    if (!begun_.save) return true;
    const bool written = writing_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
    if (shard_.sum(Index(written)) < shard_.count()) return false;
    wait();
    return true;
  }
  /// Until it is there.
  /// @throws as dist::save_checkpoint, and ArgumentError where a shard waits for another checkpoint: what was there is
  ///         untouched then
  void wait() {
    const OneThread::Scope alone(alone_);
    if (!begun_.save) return;
    const auto begun = std::move(begun_);  // whatever comes: it is no longer on its way
    writing_.wait();                       // its thread uses what is begun
    saving::commit(shard_, begun, [&] { writing_.get(); });
  }

 private:
  OneThread alone_{"AsyncCheckpoint", "one"};
  int exceptions_ = std::uncaught_exceptions();
  ShardT& shard_;
  io::safetensors::Snapshot snapshot_{};
  saving::Begun begun_{};
  std::future<void> writing_{};  // the last: its thread uses the others
};

}  // namespace gatefold::dist
