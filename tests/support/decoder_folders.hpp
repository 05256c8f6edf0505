#pragma once

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "gatefold/core/error.hpp"
#include "gatefold/io/tensor_files.hpp"
#include "support/decoders.hpp"
#include "support/safetensors_text.hpp"
#include "support/temp_directory.hpp"

namespace gatefold::support {

/// A copy of a folder of a decoder, which a test can damage.
struct CopiedFolder {
  TempDirectory to;
  explicit CopiedFolder(const std::string& name = "mixtral") {
    for (const char* file : {"config.json", "model.safetensors"})
      std::filesystem::copy_file(decoder_folders() / name / file, to.path / file);
  }
  /// Replaces the only occurrence of a text in a file.
  const CopiedFolder& replace(const char* file, const std::string& text, const std::string& by) const {
    std::string bytes = read_bytes(to.path / file);
    const std::size_t at = bytes.find(text);
    REQUIRE(at != bytes.npos);
    REQUIRE(bytes.find(text, at + 1) == bytes.npos);
    to.write(bytes.replace(at, text.size(), by), file);
    return *this;
  }
  const CopiedFolder& config(const std::string& text, const std::string& by) const {
    return replace("config.json", text, by);
  }
  const CopiedFolder& cut(const char* file, std::uintmax_t bytes) const {
    std::filesystem::resize_file(to.path / file, std::filesystem::file_size(to.path / file) - bytes);
    return *this;
  }
  const CopiedFolder& remove(const char* file) const {
    std::filesystem::remove(to.path / file);
    return *this;
  }
  /// Replaces the weights by the weights of a golden decoder and further tensors.
  const CopiedFolder& weights(const std::string& name, std::vector<GivenTensor<float>> more) const {
    const auto own = tensors_of(name);
    more.insert(more.begin(), own.begin(), own.end());
    to.write(safetensors_text(more), "model.safetensors");
    return *this;
  }
  /// Replaces the weights by an index with two parts. The first part has layer 0 of the decoder `name`. The second part
  /// has all tensors of the decoder `other` except layer 0, but the index has the names of the decoder `name`.
  const CopiedFolder& parts(const std::string& name, const std::string& other) const {
    const auto is_first = [](const GivenTensor<float>& tensor) {
      return tensor.name.find("layers.0.") != tensor.name.npos;
    };
    std::vector<GivenTensor<float>> first, second;
    std::string map;
    for (const auto& tensor : tensors_of(name)) {
      const bool in_first = is_first(tensor);
      map += (map.empty() ? "\"" : ",\"") + tensor.name + "\":\"" + (in_first ? "first" : "second") + ".safetensors\"";
      if (in_first) first.push_back(tensor);
    }
    for (const auto& tensor : tensors_of(other))
      if (!is_first(tensor)) second.push_back(tensor);
    to.write(safetensors_text(first), "first.safetensors");
    to.write(safetensors_text(second), "second.safetensors");
    to.write("{\"weight_map\":{" + map + "}}", "model.safetensors.index.json");
    return remove("model.safetensors");
  }
  static std::vector<GivenTensor<float>> tensors_of(const std::string& name) {
    const io::TensorFiles files(decoder_folders() / name / "model.safetensors");
    std::vector<GivenTensor<float>> all;
    for (const io::TensorInfo& info : files.tensors())
      all.push_back({info.name, info.shape, files.read<float>(info.name)});
    return all;
  }
  /// Calls read(path of the folder) and returns the message of the error that it throws, without the path.
  template <class F>
  std::string error_of(const F& read) const {
    try {
      read(to.path);
    } catch (const Error& e) {
      std::string message = e.what();
      const std::string path = to.path.string() + "/";
      for (std::size_t at = 0; (at = message.find(path)) != message.npos;) message.erase(at, path.size());
      return message;
    }
    return "no error";
  }
};

}  // namespace gatefold::support
