#pragma once

#include <filesystem>
#include <gatefold/core/error.hpp>
#include <gatefold/io.hpp>
#include <string>
#include <system_error>
#include <utility>

#include "../language_model/metrics.hpp"
#include "dataset.hpp"
#include "model.hpp"

namespace images {

using language::from_text, language::to_text;

/// The files of a run: its whole state, the model that was best on validation, metrics and a picture.
struct Folder {
  std::filesystem::path path;

  std::filesystem::path state() const { return path / "state.safetensors"; }
  std::filesystem::path best() const { return path / "best.safetensors"; }
  std::filesystem::path metrics() const { return path / "metrics.jsonl"; }
  std::filesystem::path picture() const { return path / "accuracy.svg"; }

  /// Make it, and where a run begins afresh, forget the one before.
  void begin(bool fresh) const {
    std::error_code error;
    std::filesystem::create_directories(path, error);
    if (error || !std::filesystem::is_directory(path))
      throw gatefold::FileError(path.string() + ": cannot make this folder" + (error ? ": " + error.message() : ""));
    if (fresh)
      for (const auto& file : {state(), best(), metrics()}) std::filesystem::remove(file, error);
  }
};

/// What a checkpoint says of its run, beside the tensors.
inline Metadata describe(const Options& o, const Images& images) {
  Metadata metadata{{"program", "gatefold vision"}, {"images", to_text(images.hash())}};
  Options::each_of_run([&](const char* name, const auto& value) { metadata[name] = to_text(value); }, o);
  return metadata;
}

/// Take the options of a run from its checkpoint.
/// @param given  whether the user gave the option of this name: then it must be the run's
template <class Given>
void adopt(const std::filesystem::path& file, Options& o, const Given& given) {
  const Metadata metadata = gatefold::io::read_metadata(file);
  Options::each_of_run(
      [&](const char* name, auto& value) {
        const auto found = metadata.find(name);
        const auto fail = [&](const std::string& reason) {
          throw gatefold::FileError(file.string() + ": metadata: " + name + ": " + reason);
        };
        if (found == metadata.end()) fail("is not there: no checkpoint of this program");
        if (given(name) && found->second != to_text(value))
          fail("the run has " + found->second + ", got " + to_text(value) + " (--fresh begins another)");
        if (!from_text(found->second, value)) fail("no value: " + found->second);
      },
      o);
}

/// Step and accuracy where validation was best; of none, -1.
inline std::pair<Index, double> best(const language::Metrics& metrics) {
  std::pair<Index, double> most{0, -1};
  for (const auto& at : metrics.of("valid_accuracy"))
    if (at.second > most.second) most = at;
  return most;
}

/// @throws FileError unless a checkpoint is of these images
inline void load(Model& model, const std::filesystem::path& file, const Images& images) {
  const Metadata metadata = gatefold::io::read_metadata(file);
  const auto found = metadata.find("images");
  if (found == metadata.end() || found->second != to_text(images.hash()))
    throw gatefold::FileError(file.string() +
                              ": metadata: images: the run is of other images (--fresh begins another)");
  model.load(file);
}

}  // namespace images
