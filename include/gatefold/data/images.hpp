#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <iterator>
#include <string>
#include <system_error>
#include <tuple>
#include <vector>

#include "gatefold/core/regular_file.hpp"
#include "gatefold/core/types.hpp"

/// Reads labelled images: the binary files of CIFAR-10 and CIFAR-100, and folders with one subfolder for each class.
/// Other formats need a decoder of yours, for example stb_image or libpng. These functions do not need zlib.
namespace gatefold::data {

/// An image with one byte for each channel of a pixel, in row-major order with the channels of a pixel together.
struct Image {
  Index rows = 0, columns = 0, channels = 0;
  std::vector<std::uint8_t> pixels{};  // [rows, columns, channels]
};

/// Images of the same size, and a label for each of them. The values of an image are in the order that
/// ImagePatches reads.
struct LabelledImages {
  Index rows = 0, columns = 0, channels = 0;
  std::vector<std::uint8_t> pixels{};  // [count, rows, columns, channels]
  std::vector<Index> labels{};         // [count]
  std::vector<std::string> classes{};  // the names of the labels, if the files have names

  Index count() const { return std::ssize(labels); }
};

/// Reads a file of CIFAR-10, for example `data_batch_1.bin` or `test_batch.bin`: images of 32 x 32 pixels in RGB.
///
/// Source: Krizhevsky 2009, "Learning multiple layers of features from tiny images"; the binary version of the files.
/// @throws FileError with path and reason if the file cannot be read, its size is not a multiple of the 3,073 bytes of
///         an image, or a label is not in 0 … 9
LabelledImages read_cifar10(const std::filesystem::path& file);

/// Which label of an image of CIFAR-100 is read: one of 100 classes, or one of the 20 groups of classes.
enum class Cifar100Label { fine, coarse };

/// Reads `train.bin` or `test.bin` of CIFAR-100. An image has 3,074 bytes, because it has two labels.
/// @throws FileError as read_cifar10
LabelledImages read_cifar100(const std::filesystem::path& file, Cifar100Label label = Cifar100Label::fine);

/// Reads a grey (P5) or RGB (P6) image in the netpbm format with up to 8 bits per value: `.pgm`, `.ppm`.
///
/// Source: the manual pages pgm(5) and ppm(5). Most programs can convert to these formats, for example ImageMagick:
/// `mogrify -resize '32x32!' -format ppm *.jpg`. Values are scaled to 0 … 255 if the largest value of the file differs.
/// @throws FileError with path and reason if the file cannot be read, has another format, or has another size than its
///         header declares
Image read_netpbm(const std::filesystem::path& file);

/// Reads a folder of images with one subfolder for each class. The labels are the positions of the subfolders in the
/// order of their names. The images of a class are in the order of their file names. Names that begin with a dot are
/// skipped.
/// @param decode  reads one image. The default reads netpbm files; for PNG or JPEG pass a function of your own
/// @throws FileError with path and reason if the folder has no subfolder, a subfolder has no image, an image has a size
///         other than that of the first image, or decode returns a wrong number of pixels; and what decode throws
LabelledImages read_image_folder(const std::filesystem::path& folder,
                                 const std::function<Image(const std::filesystem::path&)>& decode = read_netpbm);

namespace images {

/// Reads the records of CIFAR: `labels` bytes, of which byte `which` is the label, then 32 x 32 values per channel.
inline LabelledImages read_cifar(const std::filesystem::path& path, std::size_t labels, std::size_t which,
                                 int classes) {
  constexpr std::size_t plane = 32 * 32;
  const std::size_t record = labels + 3 * plane;
  RegularFile file(path);
  if (file.size() == 0 || file.size() % record != 0)
    file.fail("size: expected a multiple of the " + std::to_string(record) + " bytes of an image, got " +
              std::to_string(file.size()));
  LabelledImages all{.rows = 32, .columns = 32, .channels = 3};
  all.pixels.reserve(file.size());
  std::vector<std::uint8_t> bytes(record);
  for (std::uint64_t begin = 0; begin < file.size(); begin += record) {
    file.read(bytes.data(), record, begin);
    const int label = bytes[which];
    if (label >= classes)
      file.fail(begin + which,
                "label: expected 0 to " + std::to_string(classes - 1) + ", got " + std::to_string(label));
    all.labels.push_back(label);
    for (std::size_t i = 0; i < plane; ++i)
      for (std::size_t c = 0; c < 3; ++c) all.pixels.push_back(bytes[labels + c * plane + i]);
  }
  return all;
}

/// Reads the header of a netpbm file, which is text, from the bytes of the file.
class NetpbmHeader {
 public:
  NetpbmHeader(const RegularFile& file, const std::vector<std::uint8_t>& bytes) : file_(file), bytes_(bytes) {
    const bool begins = bytes.size() >= 2 && bytes[0] == 'P';
    if (!begins || (bytes[1] != '5' && bytes[1] != '6')) file.fail("format: expected netpbm P5 or P6");
    channels = bytes[1] == '5' ? 1 : 3;
    columns = number("width", std::uint64_t(1) << 31);
    rows = number("height", std::uint64_t(1) << 31);
    most = number("largest value", 255);
    if (at_ == bytes.size() || !is_space(bytes[at_])) file.fail(at_, "expected white space before the pixels");
    begin = at_ + 1;
    const std::uint64_t expected = columns * rows * channels, got = bytes.size() - begin;
    if (got != expected)
      file.fail("pixels: expected " + std::to_string(expected) + " bytes (" + std::to_string(columns) + " x " +
                std::to_string(rows) + " x " + std::to_string(channels) + "), got " + std::to_string(got));
  }

  std::uint64_t rows = 0, columns = 0, channels = 0, most = 0;
  std::size_t begin = 0;  // offset of the pixels in the file

 private:
  static bool is_space(std::uint8_t c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

  /// Reads the next number, from 1 to `limit`. White space and comments (`#` to the end of the line) come before it.
  std::uint64_t number(const char* what, std::uint64_t limit) {
    for (bool comment = false; at_ < bytes_.size(); ++at_) {
      const std::uint8_t c = bytes_[at_];
      if (c == '#') comment = true;
      if (comment && c == '\n') comment = false;
      if (!comment && !is_space(c)) break;
    }
    std::uint64_t value = 0;
    for (; at_ < bytes_.size() && bytes_[at_] >= '0' && bytes_[at_] <= '9' && value <= limit; ++at_)
      value = 10 * value + (bytes_[at_] - '0');
    if (value < 1 || value > limit)
      file_.fail(at_, std::string(what) + ": expected a number from 1 to " + std::to_string(limit));
    return value;
  }

  const RegularFile& file_;
  const std::vector<std::uint8_t>& bytes_;
  std::size_t at_ = 2;
};

/// Returns the entries of a folder that `keep` accepts, in the order of their names, without names that begin with a
/// dot.
template <class Keep>
std::vector<std::filesystem::path> sorted_entries(const std::filesystem::path& folder, const Keep& keep) {
  std::error_code error;
  std::vector<std::filesystem::path> found;
  std::filesystem::directory_iterator at(folder, error);
  for (; !error && at != std::filesystem::directory_iterator(); at.increment(error))
    if (keep(*at) && at->path().filename().string().front() != '.') found.push_back(at->path());
  if (error) throw FileError(folder.string() + ": cannot read this folder: " + error.message());
  std::sort(found.begin(), found.end());
  return found;
}

inline std::string size_of(const auto& image) {
  return std::to_string(image.rows) + " x " + std::to_string(image.columns) + " x " + std::to_string(image.channels);
}

}  // namespace images

inline LabelledImages read_cifar10(const std::filesystem::path& file) { return images::read_cifar(file, 1, 0, 10); }
inline LabelledImages read_cifar100(const std::filesystem::path& file, Cifar100Label label) {
  return label == Cifar100Label::coarse ? images::read_cifar(file, 2, 0, 20) : images::read_cifar(file, 2, 1, 100);
}

inline Image read_netpbm(const std::filesystem::path& path) {
  RegularFile file(path);
  std::vector<std::uint8_t> bytes(file.size());
  file.read(bytes.data(), bytes.size(), 0);
  const images::NetpbmHeader header(file, bytes);
  const auto in_file = bytes.begin() + static_cast<std::ptrdiff_t>(header.begin);
  for (auto value = in_file; value != bytes.end(); ++value) {
    if (*value > header.most)
      file.fail(static_cast<std::uint64_t>(value - bytes.begin()),
                "pixel: expected at most " + std::to_string(header.most) + ", got " + std::to_string(*value));
    *value = static_cast<std::uint8_t>((*value * 255 + header.most / 2) / header.most);
  }
  return {static_cast<Index>(header.rows),
          static_cast<Index>(header.columns),
          static_cast<Index>(header.channels),
          {in_file, bytes.end()}};
}

inline LabelledImages read_image_folder(const std::filesystem::path& folder,
                                        const std::function<Image(const std::filesystem::path&)>& decode) {
  LabelledImages all;
  for (const auto& of_class : images::sorted_entries(folder, [](const auto& entry) { return entry.is_directory(); })) {
    const auto files = images::sorted_entries(of_class, [](const auto& entry) { return !entry.is_directory(); });
    if (files.empty()) throw FileError(of_class.string() + ": expected at least one image of this class, found none");
    for (const auto& file : files) {
      const Image image = decode(file);
      const auto fail = [&](const std::string& what) { throw FileError(file.string() + ": " + what); };
      if (all.labels.empty())
        std::tie(all.rows, all.columns, all.channels) = std::tie(image.rows, image.columns, image.channels);
      if (images::size_of(image) != images::size_of(all))
        fail("size: expected " + images::size_of(all) + ", as the first image, got " + images::size_of(image));
      if (std::ssize(image.pixels) != image.rows * image.columns * image.channels)
        fail("pixels: expected " + images::size_of(image) + " values, got " + std::to_string(image.pixels.size()));
      all.pixels.insert(all.pixels.end(), image.pixels.begin(), image.pixels.end());
      all.labels.push_back(std::ssize(all.classes));
    }
    all.classes.push_back(of_class.filename().string());
  }
  if (all.classes.empty()) throw FileError(folder.string() + ": expected one subfolder for each class, found none");
  return all;
}

}  // namespace gatefold::data
