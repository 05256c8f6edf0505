#pragma once

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>

#include "gatefold/core/config.hpp"
#include "gatefold/core/error.hpp"
#include "gatefold/core/types.hpp"
#include "gatefold/io/safetensors.hpp"
#include "gatefold/optim/counters.hpp"
#include "gatefold/tensor/pack.hpp"

/// The whole state of a training run in a safetensors file, or several. Outside the umbrella: it needs nlohmann-json
/// (gatefold::io).
///
///     save_checkpoint("run.safetensors", trainer);
///     load_checkpoint("run.safetensors", trainer);                 // made of the same model and optimizer
///
/// What the owner of a run owns is a pack: its tensors become those of the file. Numbers that are no tensors stand in
/// the metadata: those of the owner and of every state inside (optim/counters.hpp). The rest of the metadata is the
/// caller's.
namespace gatefold {

namespace detail_::checkpoint {

inline constexpr std::string_view version = "1", prefix = "gatefold.", version_key = "gatefold.checkpoint",
                                  not_trained_key = "gatefold.not_trained";

/// The names of the parameters that a run does not train, a line each.
template <class R>
std::string not_trained(const R& run) {
  std::string lines;
  if constexpr (requires { run.not_trained(); })
    for (const std::string& name : run.not_trained()) lines += name + '\n';
  return lines;
}
/// A line that one of two texts has and the other lacks.
/// @return the line, and whether `a` has it
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

/// @throws ArgumentError where a run holds a part of its experts alone
template <class R>
void expect_whole(const char* where, const R& run) {
  expect(!holds_sharded(run), where, "run",
         "one that holds all its experts (on shards: dist::save_checkpoint and "
         "dist::load_checkpoint)",
         "one of several that hold some each");
}
/// The caller's metadata and the numbers of a run.
/// @throws ArgumentError on names of the caller's that begin with `gatefold.`
template <class R>
io::Metadata with_counters(io::Metadata metadata, const R& run) {
  for (const auto& [key, value] : metadata)
    expect(!key.starts_with(prefix), "save_checkpoint", "metadata", "names that do not begin with gatefold.", key);
  metadata[std::string(version_key)] = version;
  optim::for_each_counter(
      [&](const Name& at, const auto& number) {
        metadata[std::string(prefix) + at.str()] = std::to_string(optim::kept(number));
      },
      Name{}, run);
  if (std::string lines = not_trained(run); !lines.empty()) metadata[std::string(not_trained_key)] = std::move(lines);
  return metadata;
}

/// The numbers of a file, and none besides, into `run`, or nowhere: for a look before anything is written.
/// @throws FileError unless the file is a checkpoint of this version with exactly these numbers, no integer negative
template <class R>
void read_counters(const std::string& path, const io::Metadata& metadata, R& run, bool write) {
  const auto fail = [&](const std::string& reason) { throw FileError(path + ": metadata: " + reason); };
  const auto found = metadata.find(std::string(version_key));
  if (found == metadata.end())
    fail("expected a checkpoint (\"gatefold.checkpoint\"), got other tensors: io::load reads those");
  if (found->second != version)
    fail("expected a checkpoint of format " + std::string(version) +
         ", got another format: of another version of gatefold");
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
      fail("a number of another kind of run: \"" + key.substr(0, 200) + "\"");
}

/// True for a run; otherwise one sentence says so.
template <class R>
constexpr bool check_run() {
  GATEFOLD_EXPECT((requires(const R run) { run.context(); }),
                  "gatefold: a checkpoint is of a run, a Trainer say: save_checkpoint(path, trainer); parameters alone "
                  "go into io::save(path, ctx, metadata, Part{prefix, params}); see docs/how-to/checkpoints.md")
  return true;
}

/// @throws FileError unless the numbers of the file are those of such a run; nothing is written
template <class R>
void expect_counters(const std::filesystem::path& path, R& run) {
  read_counters(path.string(), io::read_metadata(path), run, false);
}
/// The numbers of a file into a run whose tensors are those of the file.
/// @return what else the metadata hold
template <class R>
io::Metadata take_counters(const std::filesystem::path& path, io::Metadata metadata, R& run) {
  read_counters(path.string(), metadata, run, true);
  if constexpr (requires { run.forget(); }) run.forget();
  std::erase_if(metadata, [](const auto& entry) { return entry.first.starts_with(prefix); });
  return metadata;
}

}  // namespace detail_::checkpoint

/// Write all that a run owns to a file: of a Trainer or ThreeStage parameters, the optimizer's state with its counters,
/// the seed and the count of steps left out; of a RoutedTrainer parameters and seed. Options are not in it, nor parts
/// of a batch that no step has taken yet (Trainer.accumulate): a run goes on at the step.
///
/// @param metadata  what the caller keeps beside, under names that do not begin with `gatefold.`
/// @param options   `{.max_file_bytes = 5'000'000'000}`: in parts of a size, beside an index
/// @throws ArgumentError on names that do; FileError as io::save: a file that was there is untouched then
/// @cost   as io::save
template <class R>
void save_checkpoint(const std::filesystem::path& path, const R& run, const io::Metadata& metadata = {},
                     const io::SaveOptions& options = {}) {
  static_assert(detail_::checkpoint::check_run<R>());
  const auto here = run.context().here();
  detail_::checkpoint::expect_whole("save_checkpoint", run);
  io::save(path, run.context(), detail_::checkpoint::with_counters(metadata, run), options, io::Part{"", run});
}

/// Go on from what save_checkpoint wrote, a file or parts: what follows has the bits of a run that was never
/// interrupted, on any number of threads, where data and extra inputs are functions of the run's seed and counters.
///
/// @param run  made of the same model, optimizer and NotTrained; options may differ
/// @return the caller's own metadata
/// @throws FileError as io::load, naming a tensor that is missing, unexpected or of another shape, and when the file is
///         no checkpoint of this format; nothing has changed then
/// @cost   as io::load
template <class R>
io::Metadata load_checkpoint(const std::filesystem::path& path, R& run) {
  static_assert(detail_::checkpoint::check_run<R>());
  const auto here = run.context().here();
  detail_::checkpoint::expect_whole("load_checkpoint", run);
  detail_::checkpoint::expect_counters(path, run);
  return detail_::checkpoint::take_counters(path, io::load(path, run.context(), io::Part{"", run}), run);
}

/// The weights of a trained model and nothing else of its run, from a checkpoint of a Trainer: to tune it, or to infer.
///
///     Trainer tuned{ctx, classifier(model, 5), CrossEntropy{.ignore = -1}, optimizer, seed};
///     load_model("language.safetensors", ctx, std::get<0>(tuned.params.layers));   // the model is the first layer
///
/// Tensors are found by name. Those of the file that are none of the model's (of a loss that learned along, of the
/// optimizer) are left alone; an optimizer's moments begin anew.
/// @param params  the model's, with their shapes
/// @throws FileError as io::load_subset, naming a tensor that is missing or of another type or shape; nothing has
///         changed then
template <class C, class P, class = std::enable_if_t<!io::has_dims<P>>>
void load_model(const std::filesystem::path& path, C& ctx, P& params) {
  const std::set<std::string> names = io::read_names(path);
  bool beside_a_loss = false;  // ModelAndLoss
  const auto look = [&](const Name& name, const AnyTensor*) {
    beside_a_loss |= names.contains("params.model." + name.str());
  };
  detail_::pack::visit_any(look, Name{}, false, params);
  io::load_subset(path, ctx, io::Part{beside_a_loss ? "params.model" : "params", params});
}

}  // namespace gatefold
