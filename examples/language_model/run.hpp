#pragma once

#include <exception>
#include <filesystem>
#include <gatefold/core/error.hpp>
#include <gatefold/io.hpp>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "../training/run.hpp"
#include "model.hpp"
#include "text.hpp"

namespace language {

inline training::Folder folder_of(const Options& o) { return {o.run, "bits.svg"}; }

/// Returns the metadata of a checkpoint, including its vocabulary as a JSON list.
inline Metadata describe(const Options& o, const Text& text) {
  Metadata metadata = training::describe("language_model", "text", text.hash(), o);
  metadata["vocabulary"] = nlohmann::json(text.vocabulary.tokens()).dump();
  return metadata;
}

/// Returns the vocabulary of a checkpoint.
/// @throws FileError if the checkpoint has no vocabulary
inline Vocabulary vocabulary_of(const std::filesystem::path& file, const Options& o) {
  const Metadata metadata = gatefold::io::read_metadata(file);
  const auto found = metadata.find("vocabulary");
  try {
    if (found == metadata.end()) throw gatefold::FileError("missing");
    return {unit(o), nlohmann::json::parse(found->second).get<std::vector<std::string>>()};
  } catch (const std::exception& error) {
    throw gatefold::FileError(file.string() + ": metadata: vocabulary: " + error.what());
  }
}

/// Loads a checkpoint into a model.
/// @throws FileError unless the checkpoint was made with this text
inline void load(Model& model, const std::filesystem::path& file, const Text& text, const Options& o) {
  training::on_run(o, [&] {
    training::expect_same(file, "text", text.hash());
    model.load(file);
  });
}

}  // namespace language
