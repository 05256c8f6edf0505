// load_checkpoint FILE: prints the content of a safetensors file (or of the shards of a model.safetensors.index.json),
// and runs the first Mixtral block in it. If the file has tensors "input" and "output", the block runs on this input,
// and its result is compared with "output".

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <exception>
#include <gatefold/gatefold.hpp>
#include <gatefold/io.hpp>
#include <string>
#include <utility>

using namespace gatefold;

namespace {

void print_contents(const io::TensorFiles& files) {
  for (const auto& [name, dtype, shape] : files.tensors())
    std::printf("%-60s %-5s %s\n", name.c_str(), std::string(dtype).c_str(),
                io::safetensors::shape_text(shape).c_str());
}

/// Returns the extents of a matrix in a file.
/// @throws FileError unless the tensor is a matrix with elements
std::pair<Index, Index> matrix(const io::TensorFiles& files, const std::string& name) {
  const auto shape = files.info(name).shape;
  if (shape.size() != 2 || shape[0] * shape[1] == 0)
    throw FileError(files.path() + ": " + name + ": expected a matrix, got " + io::safetensors::shape_text(shape));
  return {Index(shape[0]), Index(shape[1])};
}

/// Returns true if the file has an input and an output of the block, so that the block's result can be checked.
bool answers(const io::TensorFiles& files) { return files.contains("input") && files.contains("output"); }
/// Returns the block's input from the file if the file contains input and output. Otherwise returns a random input.
/// @throws FileError unless input and output are [items, dim]
Tensor<float, 2, Cpu> input(const io::TensorFiles& files, Cpu::Context& ctx, Index dim) {
  const Index items = answers(files) ? matrix(files, "input").first : 4;
  auto x = uniform_tensor<float>(ctx, Seed{2}, 1.0, items, dim);
  if (!answers(files)) return x;
  for (const char* name : {"input", "output"})
    if (matrix(files, name) != std::pair(items, dim))
      throw FileError(files.path() + ": " + name + ": expected " + std::to_string(items) + " rows of " +
                      std::to_string(dim) + ", got " + io::safetensors::shape_text(files.info(name).shape));
  std::ranges::copy(files.read<float>("input"), x.data());
  return x;
}

// [snippet load]
// `at` is the start of the names of the block's tensors, for example "model.layers.0.block_sparse_moe.".
void run_block(const io::TensorFiles& files, const std::string& at) {
  const auto [experts, dim] = matrix(files, at + "gate.weight");         // [E, D]
  const Index hidden = matrix(files, at + "experts.0.w3.weight").first;  // w3 is [H, D]
  const Mixture block{SoftmaxTopK{.scores = {.experts = experts, .bias = false}, .selection = {.k = 2}},
                      GatedMlp<Silu>{.model_dim = dim, .hidden_dim = hidden}};

  Cpu::Context ctx;
  auto params = block.init<float, Cpu>(ctx, Seed{1});
  io::load(files, ctx, io::published::mixtral(at), params);

  const auto x = input(files, ctx, dim);
  Tensor<float, 2, Cpu> y(x.extent(0), dim);
  infer(block, ctx, params, x, y);
  // [/snippet]
  std::printf("%s: %lld experts of %lld x %lld, output of item 0: %.6f ...\n", at.c_str(),
              static_cast<long long>(experts), static_cast<long long>(dim), static_cast<long long>(hidden),
              double(y(0, 0)));
  if (!answers(files)) return;
  const auto expected = files.read<double>("output");
  double apart = 0;
  for (Index i = 0; i < y.size(); ++i)
    apart = std::max(apart, std::abs(double(y.data()[i]) - expected[std::size_t(i)]));
  std::printf("largest difference to the stored output: %.1e\n", apart);
  if (!(apart < 1e-5)) throw FileError(files.path() + ": expected the stored output, got another one");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2)
    return std::fprintf(stderr, "usage: load_checkpoint FILE.safetensors | FILE.safetensors.index.json\n"), 2;
  try {
    const io::TensorFiles files(argv[1]);
    print_contents(files);
    const std::string router = "block_sparse_moe.gate.weight";
    for (const io::TensorInfo& tensor : files.tensors())
      if (tensor.name.ends_with(router)) {
        run_block(files, tensor.name.substr(0, tensor.name.size() - std::string("gate.weight").size()));
        break;
      }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "load_checkpoint: %s\n", error.what());
    return 1;
  }
}
