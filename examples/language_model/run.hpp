#pragma once

#include <exception>
#include <filesystem>
#include <gatefold/core/error.hpp>
#include <gatefold/io.hpp>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>
#include <vector>

#include "model.hpp"
#include "text.hpp"

namespace language {

/// The files of a run: its whole state, the model that was best on validation, metrics and a picture.
struct Folder {
  std::filesystem::path path;

  std::filesystem::path state() const { return path / "state.safetensors"; }
  std::filesystem::path best() const { return path / "best.safetensors"; }
  std::filesystem::path metrics() const { return path / "metrics.jsonl"; }
  std::filesystem::path picture() const { return path / "bits.svg"; }

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

/// What a checkpoint says of its run, beside the tensors: its options, its text and its tokens, as a list in JSON.
inline Metadata describe(const Options& o, const Text& text) {
  Metadata metadata{{"program", "gatefold language_model"},
                    {"text", to_text(text.hash())},
                    {"vocabulary", nlohmann::json(text.vocabulary.tokens()).dump()}};
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

/// The tokens of a checkpoint.
/// @throws FileError where there are none
inline Vocabulary vocabulary_of(const std::filesystem::path& file, const Options& o) {
  const Metadata metadata = gatefold::io::read_metadata(file);
  const auto found = metadata.find("vocabulary");
  try {
    if (found == metadata.end()) throw gatefold::FileError("is not there");
    return {unit(o), nlohmann::json::parse(found->second).get<std::vector<std::string>>()};
  } catch (const std::exception& error) {
    throw gatefold::FileError(file.string() + ": metadata: vocabulary: " + error.what());
  }
}

/// @throws FileError unless a checkpoint is of this text
inline void load(Model& model, const std::filesystem::path& file, const Text& text) {
  const Metadata metadata = gatefold::io::read_metadata(file);
  const auto found = metadata.find("text");
  if (found == metadata.end() || found->second != to_text(text.hash()))
    throw gatefold::FileError(file.string() + ": metadata: text: the run is of another text (--fresh begins another)");
  model.load(file);
}

}  // namespace language
