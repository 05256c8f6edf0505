#pragma once

#include <filesystem>

#include "../training/run.hpp"
#include "dataset.hpp"
#include "model.hpp"

namespace images {

inline training::Folder folder_of(const Options& o) { return {o.run, "accuracy.svg"}; }

/// Loads a checkpoint into a model.
/// @throws FileError unless the checkpoint was made with these images
inline void load(Model& model, const std::filesystem::path& file, const Images& images, const Options& o) {
  training::on_run(o, [&] {
    training::expect_same(file, "images", images.hash());
    model.load(file);
  });
}

}  // namespace images
