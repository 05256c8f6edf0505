// Uses all umbrella headers. warnings.sh compiles this file together with examples/quickstart.cpp, but does not run it.
#include <gatefold/gatefold.hpp>
// Included after the backend.
#include <gatefold/check.hpp>
#include <gatefold/distributed.hpp>
#include <gatefold/kernels.hpp>
#include <gatefold/papers.hpp>
#if __has_include(<nlohmann/json.hpp>)
#include <gatefold/io.hpp>
#endif
#if __has_include(<zlib.h>)
#include <gatefold/data.hpp>
#endif
#if __has_include(<mpi.h>)
#include <gatefold/mpi.hpp>
#endif
#include <cstdio>
#include <utility>

using namespace gatefold;

namespace every_umbrella {

// Uses policies that no example has.
void train() {
  Cpu::Context ctx;
  const Residual layer{update::SharpnessAware{},
                       Mixture{SoftmaxNoisyTopK{.scores = {.experts = 3}}, Linear{.model_dim = 4}}};
  Trainer trainer{ctx, layer, MeanSquaredError{}, optim::Sgd{}, Seed{1}};
  const auto x = uniform_tensor<float>(ctx, Seed{2}, 1.0, 5, 4);
  trainer.step(x, x);
#if __has_include(<nlohmann/json.hpp>)
  save_checkpoint("warnings.safetensors", trainer);
  load_checkpoint("warnings.safetensors", trainer);
  io::load(io::TensorFiles("warnings.safetensors"), ctx, io::published::mixtral(""), trainer.params);
#endif
}

// Trains on shards: in double on Cpu, or in float on CpuBf16, whose experts multiply bfloat16.
template <class B, class T>
void train_on_shards() {
  dist::Alone world;
  dist::run(world, 2, [](auto& shard) {
    typename B::Context ctx(1);
    const Residual layer{
        update::HeavyBall{},
        dist::ExpertParallel{Mixture{SoftmaxTopK{.scores = {.experts = 4}, .selection = {.k = 2}}, Mlp<Gelu>{4, 8}},
                             &shard}};
    Trainer trainer{ctx,
                    layer,
                    dist::LossOfShards{MeanSquaredError{}, &shard},
                    dist::DataParallel{optim::Clipped{optim::AdamW{}}, &shard},
                    Seed{1},
                    Element<T>{}};
    const auto x = uniform_tensor<T>(ctx, Seed{2}, 1.0, 6, 4);
    trainer.step(x, x);
  });
}

void check_and_analyse() {
  const Mixture mixture{SoftmaxTopK{.scores = {.experts = 3}, .selection = {.k = 2}}, Mlp<Gelu>{4, 8}};
  std::printf("%s\n", check::conformance<Cpu>(mixture).str().c_str());
}

#if __has_include(<zlib.h>)
void read() {
  const auto images = data::read_idx_images("images.gz");
  const auto labels = data::read_idx_labels("labels.gz");
}
#endif

[[gnu::used]] void all() {  // used: otherwise -flto drops this function and all that it calls
  train();
  train_on_shards<Cpu, double>();
  train_on_shards<CpuBf16, float>();
  check_and_analyse();
#if __has_include(<zlib.h>)
  read();
#endif
}

}  // namespace every_umbrella
