#pragma once

#include <charconv>
#include <chrono>
#include <cstddef>
#include <exception>
#include <filesystem>
#include <future>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

#include "gatefold/backend/scratch.hpp"
#include "gatefold/io/safetensors.hpp"
#include "gatefold/optim/clone.hpp"

/// Saves the complete state of a training run to one or several safetensors files, and loads it. gatefold.hpp does not
/// include this header, because the header needs nlohmann-json (CMake target gatefold::io).
///
///     save_checkpoint("run.safetensors", trainer);
///     load_checkpoint("run.safetensors", trainer);                 // constructed with the same model and optimizer
///
/// A run, for example a Trainer, is a pack: its tensors become the tensors of the file. The metadata of the file
/// contains the numbers that are not in tensors, that is, the counters of the run and of every state inside the run
/// (optim/clone.hpp). The caller can add metadata under other names.
namespace gatefold {

/// Writes the complete state of a run to a file. For a Trainer or ThreeStage, this is the parameters, the state of the
/// optimizer with its counters, the seed and the number of skipped steps. For a RoutedTrainer, it is the parameters
/// and the seed. Options are not saved. Accumulated parts of a batch (Trainer.accumulate) are not saved either: a run
/// continues after its last step.
///
/// @param metadata  additional strings of the caller, under names that do not begin with `gatefold.`
/// @param options   options of io::save. For example, `{.max_file_bytes = 5'000'000'000}` writes several files of
///         limited size and an index
/// @throws ArgumentError if a name in `metadata` begins with `gatefold.`, or if the run has only some of its experts (a
///         shard). FileError under the same conditions as io::save. An existing file is then unchanged
/// @cost   the cost of io::save
template <class R>
void save_checkpoint(const std::filesystem::path& path, const R& run, const io::Metadata& metadata = {},
                     const io::SaveOptions& options = {});

/// Loads the state that save_checkpoint wrote to one file or to several files. The run then continues with the same
/// bits as an uninterrupted run, on any number of threads. This requires that data and extra inputs depend only on the
/// run's seed and counters.
///
/// @param run  the run that gets the state. It must be constructed with the same types of model and optimizer and the
///         same NotTrained as the saved run. Options, for example lr, can differ
/// @return the metadata that was given to save_checkpoint
/// @throws FileError under the same conditions as io::load, with the name of a tensor that is missing, unexpected or of
///         a different shape. FileError also if the file is not a checkpoint of this format. ArgumentError if the run
///         has only some of its experts (a shard). The run is then unchanged
/// @cost   the cost of io::load
template <class R>
io::Metadata load_checkpoint(const std::filesystem::path& path, R& run);

/// Loads only the weights of a trained model from a checkpoint of a Trainer, for fine-tuning or inference.
///
///     Trainer tuned{ctx, classifier(model, 5), CrossEntropy{.ignore = -1}, optimizer, seed};
///     load_model("language.safetensors", ctx, std::get<0>(tuned.params.layers));   // the model is the first layer
///
/// Tensors are found by name. Other tensors of the file, for example the state of the optimizer or parameters of the
/// loss, are ignored. The state of an optimizer is not changed, so call load_model before the first step.
/// @param params  the parameters of the model. Their tensors must already have their shapes; load_model overwrites the
///         values
/// @throws FileError under the same conditions as io::load_subset, with the name of a tensor that is missing or of a
///         different type or shape. Then no tensor has changed
template <class C, class P, class = std::enable_if_t<!io::has_dims<P>>>
void load_model(const std::filesystem::path& path, C& ctx, P& params) {
  const std::set<std::string> names = io::read_names(path);
  bool beside_a_loss = false;  // true if the loss of the saved run has parameters (ModelAndLoss)
  const auto look = [&](const Name& name, const AnyTensor*) {
    beside_a_loss |= names.contains("params.model." + name.str());
  };
  detail_::pack::visit_any(look, Name{}, false, params);
  io::load_subset(path, ctx, io::Part{beside_a_loss ? "params.model" : "params", params});
}

namespace detail_::checkpoint {

inline constexpr std::string_view version = "1", prefix = "gatefold.", version_key = "gatefold.checkpoint",
                                  not_trained_key = "gatefold.not_trained";

/// Returns the names of the parameters that a run does not train, one in each line.
std::string not_trained(const auto& run) {
  std::string lines;
  if constexpr (requires { run.not_trained(); })
    for (const std::string& name : run.not_trained()) lines += name + '\n';
  return lines;
}
/// Compares two texts line by line and finds a line that occurs in only one of them.
/// @return the line, and true if `a` has this line; an empty line if all lines occur in both texts
inline std::pair<std::string, bool> first_difference(const std::string& a, const std::string& b) {
  const auto lines = [](const std::string& text) {
    std::set<std::string> all;
    for (std::size_t begin = 0, end; (end = text.find('\n', begin)) != text.npos; begin = end + 1)
      all.insert(text.substr(begin, end - begin));
    return all;
  };
  const std::set<std::string> of_a = lines(a), of_b = lines(b);
  for (const std::string& line : of_a)
    if (!of_b.contains(line)) return {line, true};
  for (const std::string& line : of_b)
    if (!of_a.contains(line)) return {line, false};
  return {};
}

/// Requires that this process has all experts of the model of a run.
/// @throws ArgumentError if this process has only some of the experts (a shard of a distributed run)
template <class R>
void expect_whole(const char* where, const R& run) {
  expect(!holds_sharded(run), where, "run",
         "a run that holds all its experts (on shards use dist::save_checkpoint and dist::load_checkpoint)",
         "a run that holds only some of its experts");
}
/// Returns the caller's metadata together with the version of the checkpoint format, the counters of a run, for example
/// the number of steps, and the names of the tensors that are not trained.
/// @throws ArgumentError if a name in the caller's metadata begins with `gatefold.`
template <class R>
io::Metadata with_counters(io::Metadata metadata, const R& run) {
  for (const auto& [key, value] : metadata)
    expect(!key.starts_with(prefix), "save_checkpoint", "metadata", "names that do not begin with \"gatefold.\"", key);
  metadata[std::string(version_key)] = version;
  optim::for_each_counter(
      [&](const Name& at, const auto& number) {
        metadata[std::string(prefix) + at.str()] = std::to_string(optim::kept(number));
      },
      Name{}, run);
  if (std::string lines = not_trained(run); !lines.empty()) metadata[std::string(not_trained_key)] = std::move(lines);
  return metadata;
}

/// Reads the counters of a run, for example the number of steps, from the metadata of a file. If `write` is false, it
/// checks the counters, but does not change the run.
/// @throws FileError if the file is not a checkpoint of this version, if it was saved with another NotTrained, if a
///         counter of the run is missing in the file, is not an integer or is negative, or if the file has a counter
///         that the run does not have
void read_counters(const std::string& path, const io::Metadata& metadata, auto& run, bool write) {
  const auto fail = [&](const std::string& reason) { throw FileError(path + ": metadata: " + reason); };
  const auto found = metadata.find(std::string(version_key));
  if (found == metadata.end())
    fail("expected a checkpoint (\"gatefold.checkpoint\"), got other tensors: read them with io::load");
  if (found->second != version)
    fail("expected a checkpoint of format " + std::string(version) + ", got the format of another version of gatefold");
  std::set<std::string> names{std::string(version_key), std::string(not_trained_key)};
  const auto selection = metadata.find(std::string(not_trained_key));
  const auto [name, in_file] = first_difference(selection == metadata.end() ? "" : selection->second, not_trained(run));
  if (!name.empty())
    fail("expected a checkpoint of a run with the same NotTrained, got one that " +
         std::string(in_file ? "does not train \"" : "trains \"") + name.substr(0, 200) + "\"");
  optim::for_each_counter(
      [&](const Name& at, auto& number) {
        const std::string key = std::string(prefix) + at.str();
        names.insert(key);
        const auto entry = metadata.find(key);
        auto value = optim::kept(number);
        bool good = entry != metadata.end();
        if (good) {
          const char *begin = entry->second.data(), *end = begin + entry->second.size();
          const auto [stopped, error] = std::from_chars(begin, end, value);
          good = error == std::errc() && stopped == end && std::cmp_greater_equal(value, 0);
        }
        if (!good) fail("expected a count in \"" + key + "\"");
        if (write) number = optim::restored<std::remove_cvref_t<decltype(number)>>(value);
      },
      Name{}, run);
  for (const auto& [key, value] : metadata)
    if (key.starts_with(prefix) && !names.contains(key))
      fail("unexpected counter of another type of run: \"" + key.substr(0, 200) + "\"");
}

/// Returns true if R is the type of a training run, for example a Trainer. If it is not, a static_assert describes the
/// mistake.
template <class R>
constexpr bool check_run() {
  GATEFOLD_EXPECT(
      (requires(const R run) { run.context(); }),
      "gatefold: a checkpoint is made from a run, for example a Trainer: save_checkpoint(path, trainer); to save only "
      "parameters use io::save(path, ctx, metadata, Part{prefix, params}); see docs/how-to/checkpoints.md")
  return true;
}

/// Checks that a checkpoint file has the counters of the run, for example the number of steps. Does not change the run.
/// @throws FileError under the same conditions as read_counters
template <class R>
void expect_counters(const std::filesystem::path& path, R& run) {
  read_counters(path.string(), io::read_metadata(path), run, false);
}
/// Copies the counters of a file into a run. The tensors of the run have already been loaded from the file.
/// @return the metadata that was given to save_checkpoint, without the entries that gatefold has added
template <class R>
io::Metadata take_counters(const std::filesystem::path& path, io::Metadata metadata, R& run) {
  read_counters(path.string(), metadata, run, true);
  if constexpr (requires { run.forget(); }) run.forget();
  std::erase_if(metadata, [](const auto& entry) { return entry.first.starts_with(prefix); });
  return metadata;
}

}  // namespace detail_::checkpoint

template <class R>
void save_checkpoint(const std::filesystem::path& path, const R& run, const io::Metadata& metadata,
                     const io::SaveOptions& options) {
  static_assert(detail_::checkpoint::check_run<R>());
  const auto here = run.context().here();
  detail_::checkpoint::expect_whole("save_checkpoint", run);
  io::save(path, run.context(), detail_::checkpoint::with_counters(metadata, run), options, io::Part{"", run});
}
template <class R>
io::Metadata load_checkpoint(const std::filesystem::path& path, R& run) {
  static_assert(detail_::checkpoint::check_run<R>());
  const auto here = run.context().here();
  detail_::checkpoint::expect_whole("load_checkpoint", run);
  detail_::checkpoint::expect_counters(path, run);
  return detail_::checkpoint::take_counters(path, io::load(path, run.context(), io::Part{"", run}), run);
}

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
  std::future<void> writing_{};  // the last member: its destructor waits for a thread that reads the other members
};

}  // namespace gatefold
