#pragma once

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <gatefold/decoders.hpp>
#include <gatefold/gatefold.hpp>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "../support/weights.hpp"
#include "sample.hpp"

namespace generating {

/// The options of the command line: see main.cpp.
struct Options {
  // An empty path means that the option is not given.
  std::filesystem::path model, frozen, save_frozen, train, save, checkpoint, prompts;
  std::vector<Index> prompt{1};
  std::vector<Index> stop;  // empty: eos_token_id of the folder
  Index tokens = 32, steps = 100, length = 128;
  Sampling sampling{};
  std::string weights, only;
  double lr = 1e-4;
  int threads = 0;
  bool mappable = false;
};

/// Returns the configuration in the folder's config.json, or that of a tiny decoder if no folder is given.
inline io::DecoderConfig config_of(const Options& o) {
  if (!o.model.empty()) return io::read_decoder_config(o.model);
  DecoderSizes tiny{.vocabulary = 256, .model_dim = 64, .depth = 2, .experts = 8, .picks = 2, .hidden_dim = 128};
  tiny.attention = {.model_dim = 64, .heads = 4, .kv_heads = 2};
  return {"mixtral", tiny, 4096};
}

/// Returns the content of a JSON file.
/// @throws FileError unless the file contains a JSON object
inline nlohmann::ordered_json read_object(const std::filesystem::path& path) {
  std::ifstream file(path);
  nlohmann::ordered_json json = nlohmann::ordered_json::parse(file, nullptr, false);
  if (!json.is_object()) throw FileError(path.string() + ": expected a JSON object");
  return json;
}

/// Returns the tokens after which a text ends: the option `stop`, or eos_token_id of generation_config.json or
/// config.json, which is an integer or a list. Without these, returns an empty list.
/// @throws FileError that names the file, if its eos_token_id is neither an integer nor a list of integers
inline std::vector<Index> stop_ids(const Options& o) {
  if (!o.stop.empty() || o.model.empty()) return o.stop;
  for (const char* name : {"generation_config.json", "config.json"}) {
    const std::filesystem::path path = o.model / name;
    if (!std::filesystem::exists(path)) continue;
    const nlohmann::ordered_json json = read_object(path);
    const auto found = json.find("eos_token_id");
    if (found == json.end() || found->is_null()) continue;
    const auto list = found->is_array() ? *found : nlohmann::ordered_json::array({*found});
    for (const auto& id : list)
      if (!id.is_number_integer())
        throw FileError(path.string() + ": eos_token_id: expected an integer or a list of integers, got " +
                        found->dump(-1, ' ', true, nlohmann::ordered_json::error_handler_t::replace).substr(0, 200));
    return list.get<std::vector<Index>>();
  }
  return {};
}

/// Returns the prompts: the lines of the file `prompts`, or the option `prompt`.
/// @throws ArgumentError if the file has no prompt, an empty line, or other text than ids
inline std::vector<std::vector<Index>> prompts_of(const Options& o) {
  if (o.prompts.empty()) return {o.prompt};
  std::ifstream file(o.prompts);
  std::vector<std::vector<Index>> prompts;
  for (std::string line; std::getline(file, line);) {
    std::istringstream text(line);
    prompts.emplace_back();
    for (Index id = 0; text >> id;) prompts.back().push_back(id);
    expect(text.eof() && !prompts.back().empty(), "options", "prompts", "ids in each line",
           Joined{"line ", prompts.size(), ": \"", line.substr(0, 100), '"'});
  }
  expect(!prompts.empty(), "options", "prompts", "a file with a prompt in each line", "no line");
  return prompts;
}

/// Returns the bytes of the tensors that the run reads, and the element type of the first one, for example "BF16".
inline std::pair<double, std::string> stored_in(const Options& o) {
  if (o.model.empty()) return {0, "F32"};
  const io::TensorFiles files(o.frozen.empty() ? o.model / "model.safetensors" : o.frozen);
  double bytes = 0;
  for (const auto& tensor : files.tensors())
    io::safetensors::with_element(tensor.dtype, [&]<class S>(S) { bytes += double(sizeof(S) * files.count(tensor)); });
  return {bytes, files.tensors().empty() ? "F32" : std::string(files.tensors()[0].dtype)};
}

/// Selects the tensors that are not trained: those whose name in the folder does not contain the option `only`.
/// @throws ArgumentError if no tensor is left to train
inline NotTrained not_trained(const Options& o, const io::DecoderConfig& config) {
  std::vector<std::string> others;
  const io::TensorMap map = io::decoder_map(config);
  for (const io::MapEntry& entry : map)
    if (entry.theirs.find(o.only) == std::string::npos) others.push_back(entry.ours);
  expect(others.size() < map.size(), "options", "only", "a part of a name such as " + map.back().theirs, o.only);
  return others;
}

/// Returns true if the run only generates tokens with packed weights. Matrices then exist in memory only in packed
/// form.
inline bool serves(const Options& o) {
  return !o.model.empty() && !o.weights.empty() && o.train.empty() && o.save.empty();
}

/// Prints the content of the folder and the memory that the run needs. Allocates no parameters.
template <class M>
void print_plan(const Options& o, const io::DecoderConfig& config, const M& model,
                const std::vector<std::vector<Index>>& prompts) {
  const DecoderSizes& s = config.sizes;
  Shapes::Context shapes;
  const ModelAndLoss<Params<M, float, Shapes>, Params<StreamedCrossEntropy, float, Shapes>> params{
      init_params<float, Shapes>(model, shapes, Seed{}), init_params<float, Shapes>(s.loss(), shapes, Seed{})};
  const std::vector<bool> fixed = not_trained(o, config).of(params);
  auto is_fixed = fixed.begin();
  // Numbers of values: in all tensors, in the tensors of rank 3 (which are packed), and in the trained tensors.
  double all = 0, matrices = 0, trained = 0;
  const auto add = [&]<class Tensor>(const Name&, const Tensor& tensor) {
    all += double(tensor.size());
    matrices += Tensor::rank == 3 ? double(tensor.size()) : 0;
    trained += *is_fixed++ ? 0 : double(tensor.size());
  };
  for_each_tensor(add, params);
  const auto [bytes, dtype] = stored_in(o);
  std::size_t longest = 0;
  for (const auto& prompt : prompts) longest = std::max(longest, prompt.size());
  const CacheSize kv = s.cache(1, static_cast<Index>(longest) + o.tokens);
  const double cache = 4.0 * double(kv.layers) * double(kv.parts) * double(kv.capacity()) * double(kv.width);
  const Weights form = command_line::form_of_weights(o.weights);
  const double of_weight = form == Weights::unchanged  ? 4
                           : form == Weights::bfloat16 ? 2
                           : form == Weights::int8     ? 34. / 32
                                                       : 18. / 32;
  // The output layer is packed unless `form` is unchanged. If the layer is tied, its weights are also the embedding
  // table of the model. The table then stays in memory as floats, in addition to the packed copy.
  const double output = form == Weights::unchanged ? 0 : double(s.vocabulary * s.model_dim);
  double packed = o.weights.empty() ? 0 : of_weight * (matrices + output);
  double plain = serves(o) ? 4 * (all - matrices - (s.tied ? 0 : output)) : 4 * all;
  if (!o.frozen.empty()) packed = bytes, plain = 0;
  // A Trainer makes its own parameters, a gradient and two moments before it takes the parameters of the folder.
  const double training = o.train.empty() ? 0 : 4 * all + 12 * trained, mb = 1e6;
  std::cerr << config.model_type << ": " << s.depth << " layers of width " << s.model_dim << ", vocabulary "
            << s.vocabulary << ", " << s.experts << " experts, " << s.picks << " for each token, trained for "
            << config.max_positions << " positions\n"
            << count_parameters(model, s.loss()) << " parameters; files: " << bytes / mb << " MB of " << dtype
            << "\nmemory without activations: " << (plain + std::max(training, packed + cache)) / mb
            << " MB = parameters " << plain / mb << "\n  + the larger of: training " << training / mb
            << ", packed weights " << packed / mb << " + KV cache " << cache / mb << std::endl;
}

}  // namespace generating
