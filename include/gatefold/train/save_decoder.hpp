#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gatefold/io/folder_replacement.hpp"
#include "gatefold/train/load_decoder.hpp"

namespace gatefold::io {

/// Writes a decoder to a folder in the form of the folder from which it was read:
///
///     io::save_decoder("new", ctx, config, trainer.params, "hub");
///
/// The new folder has the same files of weights as the folder `from`, with the same names, types, shapes and offsets of
/// tensors, and the same metadata and index. It also has copies of config.json, the tokenizer and all other files,
/// except other files of weights (.safetensors, .bin, …), their index (*.index.json) and folders inside the folder.
/// Parameters that were read from `from` and not changed give the same bytes in every file.
///
/// Elements of 16 bits are rounded to nearest, ties to even. Numbers of eight bits (FP8) and of four bits (MXFP4) with
/// scales are rounded by equations (3) and (4) of io/block_scales.hpp. A block keeps its bytes if its values did not
/// change. Tensors of `from` that the decoder does not have, for example `rotary_emb.inv_freq`, are copied. If the
/// output layer is tied to the embedding, a `lm_head.weight` gets the weights of the embedding.
///
/// The folder is written under a temporary name (FolderReplacement) and then renamed, so a folder `to` never has only
/// some of the files. A folder of an earlier save is replaced.
/// @param params  a ModelAndLoss, as load_decoder returns it
/// @param from    the folder from which `config` was read. The values of its weights may have changed since then, but
///                not the names and shapes of its tensors
/// @throws ArgumentError if `to` is the folder `from`, or if weights of `params` exist only in packed form; FileError
///         under the same conditions as load_decoder for the files of `from`, and if `to` contains a file that this
///         save does not write, or cannot be written. An existing folder is unchanged then
/// @cost   host memory for some copies of the largest tensor in the files
template <class C, class P>
void save_decoder(const std::filesystem::path& to, C& ctx, const DecoderConfig& config, const P& params,
                  const std::filesystem::path& from);

namespace decoder_folder {

/// True for parameters of a model and its loss, but not for frozen parameters.
template <class P>
inline constexpr bool can_be_saved = false;
template <class P>
requires detail_::pack::is_pack<P>
inline constexpr bool can_be_saved<P> = !requires(const P& p) { p.model.packed; };

/// Returns the names of the files of a folder that are neither files of weights nor their index (*.index.json).
/// save_decoder copies these files.
inline std::set<std::string> other_files(const std::filesystem::path& folder) {
  static constexpr std::array weights{".safetensors", ".bin", ".pt",      ".pth", ".ckpt",
                                      ".gguf",        ".h5",  ".msgpack", ".onnx"};
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string(), extension = entry.path().extension().string();
    if (entry.is_regular_file() && !name.ends_with(".index.json") &&
        std::find(weights.begin(), weights.end(), extension) == weights.end())
      names.insert(name);
  }
  return names;
}

/// Copies bytes [begin, end) of a file to a new file.
inline void copy_bytes(RegularFile& from, std::uint64_t begin, std::uint64_t end, Replacement& to) {
  std::vector<std::byte> block;
  for (constexpr std::uint64_t at_once = std::uint64_t(1) << 22; begin < end; begin += block.size()) {
    block.resize(std::min(at_once, end - begin));
    from.read(block.data(), block.size(), begin);
    to.write(block.data(), block.size());
  }
}
inline void copy_file(const std::filesystem::path& from, const std::filesystem::path& to) {
  RegularFile file(from);
  Replacement copy(to);
  copy_bytes(file, 0, file.size(), copy);
  copy.commit();
}

/// Encodes values as numbers with scales, by (3) or (4) of block_scales.hpp, and replaces the previous encoding in
/// `tensor`.
inline void encode(const std::vector<float>& values, TensorFiles::Encoded& tensor) {
  const std::vector<std::uint64_t>& shape = tensor.numbers.shape;
  if (tensor.scales.dtype == "U8")
    return block_scales::encode_mxfp4(values.data(), values.size() / block_scales::kRow, tensor.bytes.data(),
                                      tensor.scale_bytes.data());
  const std::string_view dtype = tensor.scales.dtype;
  const std::uint64_t rows = shape.rbegin()[1], columns = shape.back(), count = TensorFiles::count(tensor.scales);
  if (values.empty()) return;
  std::vector<float> scale(count);
  safetensors::decode(dtype, tensor.scale_bytes.data(), count, scale.data());
  const std::vector<float> before = scale;
  const std::size_t element = tensor.scale_bytes.size() / count;
  std::vector<std::byte> one(element);
  const auto stored = [&](float value) {
    safetensors::encode(dtype, &value, 1, one.data());
    safetensors::decode(dtype, one.data(), 1, &value);
    return value;
  };
  block_scales::encode_fp8(values.data(), values.size() / (rows * columns), rows, columns, tensor.bytes.data(),
                           scale.data(), stored);
  for (std::uint64_t i = 0; i < count; ++i)
    if (!block_scales::is_same(scale[i], before[i]))
      safetensors::encode(dtype, &scale[i], 1, tensor.scale_bytes.data() + i * element);
}

/// Encodes the tensors of a decoder as bytes for the tensors in its files.
template <class C>
class NewBytes {
 public:
  NewBytes(C& ctx, const TensorFiles& files, std::vector<tensor_map::Gathered<C>> tensors, std::string tied)
      : ctx_(ctx), files_(files), tensors_(std::move(tensors)), tied_(std::move(tied)) {}

  /// Writes the bytes of the file's tensor `name` to `bytes`.
  /// @return false if the decoder has no such tensor
  bool of(const std::string& name, std::string_view dtype, std::vector<std::byte>& bytes) {
    if (const auto kept = scales_.find(name); kept != scales_.end()) {
      bytes = std::move(kept->second);
      scales_.erase(kept);
      return true;
    }
    constexpr std::string_view blocks = "_blocks";
    const std::string scaled = files_.scaled_by(name);
    const bool is_blocks = name.ends_with(blocks) && !files_.contains(name);
    const std::string base = !scaled.empty() ? scaled
                             : is_blocks     ? name.substr(0, name.size() - blocks.size())
                             : name.ends_with("lm_head.weight") && !find(name) ? tied_
                                                                               : name;
    const tensor_map::Gathered<C>* const tensor = find(base);
    if (!tensor) return false;
    if (!files_.has_scales(base)) {
      bytes = tensor_map::encoded(*tensor, tensor->elements(ctx_), dtype);
      return true;
    }
    std::vector<float> values(tensor->size());
    {
      const std::vector<std::byte> elements = tensor->elements(ctx_);
      safetensors::decode(tensor->dtype(Stored::as_they_are), elements.data(), values.size(), values.data());
    }
    TensorFiles::Encoded encoded = files_.read_encoded(base);
    encode(values, encoded);
    if (!scaled.empty()) {
      bytes = std::move(encoded.scale_bytes);
    } else {
      bytes = std::move(encoded.bytes);
      scales_[encoded.scales.name] = std::move(encoded.scale_bytes);
    }
    return true;
  }

 private:
  const tensor_map::Gathered<C>* find(const std::string& name) const {
    const auto at = std::lower_bound(tensors_.begin(), tensors_.end(), name,
                                     [](const auto& tensor, const std::string& text) { return tensor.name < text; });
    return at != tensors_.end() && at->name == name ? &*at : nullptr;
  }

  C& ctx_;
  const TensorFiles& files_;
  std::vector<tensor_map::Gathered<C>> tensors_;
  std::string tied_;  // name of the embedding's tensor if the output layer has the same weights; otherwise empty
  std::map<std::string, std::vector<std::byte>> scales_{};  // scales that were encoded together with their numbers
};

}  // namespace decoder_folder

template <class C, class P>
void save_decoder(const std::filesystem::path& to, C& ctx, const DecoderConfig& config, const P& params,
                  const std::filesystem::path& from) {
  GATEFOLD_REQUIRE((decoder_folder::can_be_saved<P>),
                   "gatefold: save_decoder takes the parameters of load_decoder, or trainer.params; parameters of "
                   "freeze and load_frozen_decoder are only for inference; see docs/how-to/checkpoints.md");
  std::error_code unknown;
  expect(!std::filesystem::equivalent(to, from, unknown), "io::save_decoder", "to", "another folder than the source",
         to.string());
  const std::filesystem::path path = from / "model.safetensors", index = safetensors::index_of(path);
  const TensorFiles files(path);
  const TensorMap map = decoder_folder::map_of(files, config);
  decoder_folder::expect_tensors(files, map, config, params);
  auto tensors = tensor_map::gather<C>(map, params);
  for (const auto& tensor : tensors)
    if (const std::string_view dtype = files.info(tensor.name).dtype; dtype[0] != 'F' && dtype != "BF16")
      files.fail(tensor.name, "dtype: expected floating-point numbers, got " + std::string(dtype));
  const std::string embedding = map.front().theirs;
  decoder_folder::NewBytes<C> bytes_of(ctx, files, std::move(tensors), config.sizes.tied ? embedding : "");

  safetensors::Opened opened = safetensors::open(path, [](const std::string&) { return true; });
  const std::set<std::string> copied = decoder_folder::other_files(from);
  std::set<std::string> names = copied;
  if (!index.empty()) names.insert(index.filename().string());
  for (const auto& part : opened.files) names.insert(std::filesystem::path(part.file.path()).filename().string());
  FolderReplacement folder(to, names);
  for (safetensors::OpenFile& part : opened.files) {
    Replacement file(folder.path() / std::filesystem::path(part.file.path()).filename());
    std::uint64_t at = 0;  // bytes from here to the next tensor of the decoder are copied
    for (const safetensors::Described& tensor : part.header.tensors) {
      std::vector<std::byte> bytes;
      const std::uint64_t begin = part.header.data_begin + tensor.begin, end = part.header.data_begin + tensor.end;
      if (!bytes_of.of(std::string(part.header.name(tensor)), tensor.dtype->name, bytes)) continue;
      if (bytes.size() != end - begin)
        files.fail(part.header.name(tensor),
                   "expected " + std::to_string(bytes.size()) + " bytes, got " + std::to_string(end - begin));
      decoder_folder::copy_bytes(part.file, at, begin, file);
      file.write(bytes.data(), bytes.size());
      at = end;
    }
    decoder_folder::copy_bytes(part.file, at, part.file.size(), file);
    file.commit();
  }
  for (const std::string& name : copied) decoder_folder::copy_file(from / name, folder.path() / name);
  if (!index.empty()) decoder_folder::copy_file(index, folder.path() / index.filename());
  folder.commit();
}

}  // namespace gatefold::io
