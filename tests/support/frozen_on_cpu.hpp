#pragma once

#include <filesystem>

#include "gatefold/expert/gated_mlp.hpp"
#include "gatefold/gate/composed_gate.hpp"
#include "gatefold/layer/chain.hpp"
#include "gatefold/layer/embedding.hpp"
#include "gatefold/layer/frozen.hpp"
#include "gatefold/layer/mixture.hpp"
#include "gatefold/loss/streamed_cross_entropy.hpp"

/// A small language model. Cpu and Cuda write its frozen weights to files. The code for Cpu is compiled separately,
/// because nvcc does not read the headers of Cpu.
namespace gatefold::test {

// Most numbers of rows and columns are odd, so that half of a byte is unused and rows are padded.
inline auto frozen_model() {
  return Chain{Embedding{.vocabulary = 45, .model_dim = 37},
               Mixture{SoftmaxTopK{.scores = {.experts = 3}, .selection = {.k = 2}},
                       GatedMlp<Silu>{.model_dim = 37, .hidden_dim = 70, .bias = true}}};
}
inline StreamedCrossEntropy frozen_loss(bool tied) { return {.vocabulary = 45, .model_dim = 37, .tied = tied}; }

/// The files that Cpu writes to a folder: the plain parameters; the frozen parameters; the frozen parameters with the
/// loss, in an ordinary and in a mappable file.
struct FilesOfCpu {
  std::filesystem::path folder;
  std::filesystem::path plain() const { return folder / "plain.safetensors"; }
  std::filesystem::path frozen() const { return folder / "frozen.safetensors"; }
  std::filesystem::path with_loss() const { return folder / "with_loss.safetensors"; }
  std::filesystem::path mappable() const { return folder / "mappable.safetensors"; }
};

/// Writes FilesOfCpu. It is compiled in cuda/frozen_file_on_cpu.cpp.
void write_on_cpu(const FilesOfCpu& files, bool tied, const FreezeOptions& options);

}  // namespace gatefold::test
