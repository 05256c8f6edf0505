#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/expert/gated_mlp.hpp"
#include "gatefold/gate/composed_gate.hpp"
#include "gatefold/layer/chain.hpp"
#include "gatefold/layer/embedding.hpp"
#include "gatefold/layer/mixture.hpp"
#include "gatefold/model/decoder.hpp"
#include "support/temp_directory.hpp"

/// Small frozen models for tests of their files, and damaged files.
namespace gatefold::support {

inline auto file_branch() {
  return Mixture{SoftmaxTopK{.scores = {.experts = 3}, .selection = {.k = 2}},
                 GatedMlp<Silu>{.model_dim = 37, .hidden_dim = 70, .bias = true}};
}

/// Returns the outputs of the branch for 9 items.
template <class B, class P>
std::vector<float> outputs_of_file(typename B::Context& ctx, const P& frozen) {
  const auto x = uniform_tensor<float>(ctx, Seed{2}, 1.0, 9, 37);
  Tensor<float, 2, B> y(9, 37);
  infer(file_branch(), ctx, frozen, x, y);
  return {y.data(), y.data() + y.size()};
}
template <class B>
auto frozen_branch(typename B::Context& ctx, FreezeOptions options) {
  return freeze(ctx, init_params<float, B>(file_branch(), ctx, Seed{1}), options);
}

/// A small language model.
inline auto file_layers() { return Chain{Embedding{.vocabulary = 45, .model_dim = 37}, file_branch()}; }
inline StreamedCrossEntropy file_loss(bool tied) { return {.vocabulary = 45, .model_dim = 37, .tied = tied}; }
/// Returns options for every form of the weights, and two options that give the output layer a different form.
inline std::vector<FreezeOptions> options_of_layers() {
  return {{},
          {.weights = Weights::bfloat16},
          {.weights = Weights::int8},
          {.weights = Weights::int4},
          {.weights = Weights::mxfp4},
          {.weights = Weights::int8, .except = {{"loss.weight", Weights::unchanged}}},
          {.weights = Weights::int4, .except = {{"loss.weight", Weights::bfloat16}}}};
}
template <class B>
auto frozen_layers(typename B::Context& ctx, bool tied, FreezeOptions options) {
  auto model = init_params<float, B>(file_layers(), ctx, Seed{1});
  return freeze(ctx,
                ModelAndLoss<decltype(model), Params<StreamedCrossEntropy, float, B>>{
                    std::move(model), init_params<float, B>(file_loss(tied), ctx, Seed{2})},
                std::move(options));
}
/// Returns the outputs of a language model for some ids, and the logits.
template <class B, class M, class P>
std::vector<float> outputs_and_logits(typename B::Context& ctx, const M& model, const StreamedCrossEntropy& loss,
                                      const P& frozen, const Extra<M, float, B>& extra = {}) {
  const std::vector<Index> ids{3, 1, 4};
  Carry<M, float, B> carry;
  Tensor<float, 2, B> y(3, loss.model_dim), z(3, loss.vocabulary);
  model.begin(ctx, frozen.model.params, 3, carry);
  infer(model, ctx, frozen.model, ids, carry, y, extra);
  loss.logits(ctx, frozen.loss, frozen.model, y, z);
  std::vector<float> all(y.data(), y.data() + y.size());
  all.insert(all.end(), z.data(), z.data() + z.size());
  return all;
}

/// Saves a file, changes its bytes with change(bytes), loads the file, and returns the message of the error of loading.
template <class Save, class Load, class F>
std::string error_of_changed(const Save& save, const Load& load, const F& change) {
  const TempDirectory folder;
  const auto path = folder.path / "f";
  Cpu::Context ctx(1);
  save(path, ctx);
  std::string text = read_bytes(path);
  change(text);
  std::ofstream(path, std::ios::binary) << text;
  try {
    load(path, ctx);
  } catch (const FileError& error) {
    const std::string message = error.what();
    return message.substr(message.find(": ") + 2);
  }
  return "no error";
}
/// Returns a function that changes the bytes of a file. It calls change(header, elements) with the header as JSON.
template <class F>
auto changed_parts(const F& change) {
  return [=](std::string& text) {
    std::uint64_t length = 0;
    std::memcpy(&length, text.data(), sizeof(length));
    nlohmann::json header = nlohmann::json::parse(text.substr(8, length));
    std::string elements = text.substr(8 + length);
    change(header, elements);
    const std::string changed = header.dump();
    length = changed.size();
    text = std::string(reinterpret_cast<const char*>(&length), 8) + changed + elements;
  };
}

}  // namespace gatefold::support
