#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <gatefold/data.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "sizes.hpp"

namespace fashion {

using gatefold::FileError;

inline constexpr std::array<const char*, kClasses> kClassNames{"T-shirt", "Trouser", "Pullover", "Dress", "Coat",
                                                               "Sandal",  "Shirt",   "Sneaker",  "Bag",   "Boot"};

/// Images as rows of patches, and their labels.
struct Dataset {
  Index count = 0;
  std::vector<float> images{};  // [count, patches, patch²], normalised
  std::vector<Index> labels{};  // [count], 0 … 9
};

/// Returns the path of the file `stem.gz` in a directory, or of `stem` if there is no `stem.gz`.
inline std::filesystem::path find_file(const std::filesystem::path& directory, const std::string& stem) {
  for (const char* ending : {".gz", ""}) {
    if (std::filesystem::path path = directory / (stem + ending); std::filesystem::exists(path)) return path;
  }
  throw FileError((directory / stem).string() + ": neither this file nor the same with .gz exists");
}

/// The training set or the test set of Fashion-MNIST, as stored in its files.
struct Half {
  gatefold::data::IdxImages images{};
  std::vector<std::uint8_t> labels{};  // [count], 0 … 9
};

/// Reads the training set or the test set of Fashion-MNIST (Xiao et al. 2017, arXiv:1708.07747).
///
/// @param half  "train" for the 60000 training images, "t10k" for the 10000 test images
/// @throws FileError if a file is missing or incomplete, if there are no images or their size is not 28 x 28, if a
///   label is above 9, or if the numbers of images and labels differ
inline Half read_half(const std::filesystem::path& directory, const std::string& half) {
  const std::filesystem::path images_path = find_file(directory, half + "-images-idx3-ubyte");
  const std::filesystem::path labels_path = find_file(directory, half + "-labels-idx1-ubyte");
  gatefold::data::IdxImages images = gatefold::data::read_idx_images(images_path);
  if (images.rows != kSide || images.columns != kSide) {
    throw FileError(images_path.string() + ": offset 8: expected images of 28 x 28, got " +
                    std::to_string(images.rows) + " x " + std::to_string(images.columns));
  }
  if (images.count == 0) throw FileError(images_path.string() + ": offset 4: expected images, got none");
  std::vector<std::uint8_t> labels = gatefold::data::read_idx_labels(labels_path);
  if (static_cast<Index>(labels.size()) != images.count) {
    throw FileError(labels_path.string() + ": offset 4: expected " + std::to_string(images.count) +
                    " labels, one for each image, got " + std::to_string(labels.size()));
  }
  const auto wrong = std::find_if(labels.begin(), labels.end(), [](std::uint8_t label) { return label >= kClasses; });
  if (wrong != labels.end()) {
    throw FileError(labels_path.string() + ": offset " + std::to_string(8 + (wrong - labels.begin())) +
                    ": expected a label from 0 to 9, got " + std::to_string(*wrong));
  }
  return {std::move(images), std::move(labels)};
}

/// Reads the training set or the test set (see read_half), and cuts each image into patches.
/// @param patch  side of a patch, a divisor of 28
inline Dataset load(const std::filesystem::path& directory, const std::string& half, Index patch) {
  gatefold::expect(patch >= 1 && kSide % patch == 0, "fashion::load", "patch", "a divisor of 28", patch);
  const Half read = read_half(directory, half);
  Dataset set;
  set.count = read.images.count;
  set.labels.assign(read.labels.begin(), read.labels.end());
  set.images.reserve(read.images.pixels.size());
  const std::vector<Index> order = patch_order(patch);
  for (Index n = 0; n < set.count; ++n) {
    const std::uint8_t* image = read.images.pixels.data() + n * kPixels;
    for (const Index at : order) set.images.push_back((static_cast<float>(image[at]) / 255.0f - kMean) / kDeviation);
  }
  return set;
}

/// Copies some images and their labels into a batch.
///
/// @param items   numbers of the images to copy
/// @param rows    [items, 784] out, the pixels
/// @param labels  [items] out
inline void gather(const Dataset& set, std::span<const Index> items, float* rows, Index* labels) {
  for (const Index item : items) {
    rows = std::copy_n(set.images.data() + item * kPixels, kPixels, rows);
    *labels++ = set.labels[static_cast<std::size_t>(item)];
  }
}

}  // namespace fashion
