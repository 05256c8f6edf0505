#pragma once

#include <chrono>
#include <exception>
#include <filesystem>
#include <future>
#include <memory>
#include <utility>
#include <vector>

#include "gatefold/backend/one_thread.hpp"
#include "gatefold/io/safetensors.hpp"
#include "gatefold/io/snapshot.hpp"
#include "gatefold/train/checkpoint.hpp"

/// Writes checkpoints of a training run to files while training continues. gatefold.hpp does not include this header,
/// because the header needs nlohmann-json.
namespace gatefold {

/// Writes checkpoints on a separate thread, one after the other.
///
///     AsyncCheckpoint checkpoint;
///     checkpoint.save("run.safetensors", trainer);   // returns when the state is copied
///     trainer.step(x, target);                       // the thread writes during this step
///     checkpoint.wait();                             // returns when the file is complete
///
/// The file has the same bytes as a file that save_checkpoint writes at this step. The previous file is replaced only
/// after the new file is complete. If writing fails on the thread, the next call of save or wait throws the error. If
/// neither is called, the destructor throws the error, unless an exception is already active. To avoid an exception
/// from the destructor, call wait() before it. On shards, use dist::AsyncCheckpoint.
class AsyncCheckpoint {
 public:
  AsyncCheckpoint() = default;
  AsyncCheckpoint(const AsyncCheckpoint&) = delete;
  AsyncCheckpoint& operator=(const AsyncCheckpoint&) = delete;
  ~AsyncCheckpoint() noexcept(false) {
    if (std::uncaught_exceptions() == exceptions_) wait();
  }

  /// Begins to write a checkpoint. First waits until the previous checkpoint is written.
  /// @throws the error of the previous checkpoint, or an error of save_checkpoint (ArgumentError, FileError). In both
  ///         cases no new checkpoint begins
  /// @cost   a copy of the state in host memory; this memory is kept for the next call
  template <class R>
  void save(const std::filesystem::path& path, const R& run, const io::Metadata& metadata = {},
            const io::SaveOptions& options = {}) {
    const OneThread::Scope alone(alone_);
    using C = std::remove_cvref_t<decltype(run.context())>;
    namespace files = io::safetensors;
    static_assert(detail_::checkpoint::check_run<R>());
    const auto here = run.context().here();
    detail_::checkpoint::expect_whole("AsyncCheckpoint.save", run);
    wait();
    const io::Part<const R> part{"", run};
    auto list = files::entries<typename C::Backend>("AsyncCheckpoint.save", part);
    std::vector<files::Source> sources;
    files::visit<typename C::Backend>(files::AddSource<C>{sources}, part);
    auto save = std::make_unique<files::Save>(
        path, files::layout_of(detail_::checkpoint::with_counters(metadata, run), std::move(list), options));
    snapshot_.take(&run.context(), sources);
    writing_ = std::async(std::launch::async, [this, begun = std::move(save)]() mutable {
      // The thread owns the unfinished files. If writing fails, the destructor of `own` removes them.
      const auto own = std::move(begun);
      own->write(nullptr, snapshot_.sources());
      own->commit(own->content());
    });
  }
  /// Returns whether a checkpoint is being written.
  bool writing() const {
    const OneThread::Scope alone(alone_);
    return writing_.valid() && writing_.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
  }
  /// Waits until the checkpoint is written.
  /// @throws FileError under the same conditions as save_checkpoint. If it throws, an existing file is unchanged
  void wait() {
    const OneThread::Scope alone(alone_);
    if (writing_.valid()) writing_.get();
  }

 private:
  mutable OneThread alone_{"AsyncCheckpoint", "one AsyncCheckpoint"};
  int exceptions_ = std::uncaught_exceptions();
  io::safetensors::Snapshot snapshot_{};
  std::future<void> writing_{};  // the last member, because its destructor waits for a thread that reads the others
};

}  // namespace gatefold
