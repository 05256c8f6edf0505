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

/// Checkpoints that are written while training goes on. Outside the umbrella, as train/checkpoint.hpp.
namespace gatefold {

/// Writes checkpoints on a thread of its own, one after the other.
///
///     AsyncCheckpoint checkpoint;
///     checkpoint.save("run.safetensors", trainer);   // returns when the state is copied
///     trainer.step(x, target);                       // meanwhile it is written
///     checkpoint.wait();                             // now it is there
///
/// The file is the one of save_checkpoint at that step; until it is whole there is what was there before. What goes
/// wrong on that thread is thrown by the next call of save or wait, and by the destructor if none follows: it throws
/// unless an exception is on its way already. Whoever wants no exception from a destructor calls wait() before.
/// On shards: dist::AsyncCheckpoint.
class AsyncCheckpoint {
 public:
  AsyncCheckpoint() = default;
  AsyncCheckpoint(const AsyncCheckpoint&) = delete;
  AsyncCheckpoint& operator=(const AsyncCheckpoint&) = delete;
  ~AsyncCheckpoint() noexcept(false) {
    if (std::uncaught_exceptions() == exceptions_) wait();
  }

  /// Begin a checkpoint, after the one before has been written.
  /// @throws what the one before threw, and ArgumentError and FileError as save_checkpoint where the file cannot be
  ///         begun: nothing is written then
  /// @cost   a copy of the state in host memory, which stays
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
      const auto own = std::move(begun);  // a file that failed is gone when its thread has ended
      own->write(nullptr, snapshot_.sources());
      own->commit(own->content());
    });
  }
  /// Whether one is being written.
  bool writing() const {
    const OneThread::Scope alone(alone_);
    return writing_.valid() && writing_.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
  }
  /// Until it is written.
  /// @throws FileError as save_checkpoint: a file that was there is untouched then
  void wait() {
    const OneThread::Scope alone(alone_);
    if (writing_.valid()) writing_.get();
  }

 private:
  mutable OneThread alone_{"AsyncCheckpoint", "one"};
  int exceptions_ = std::uncaught_exceptions();
  io::safetensors::Snapshot snapshot_{};
  std::future<void> writing_{};  // the last: its thread reads the others
};

}  // namespace gatefold
