#include "gatefold/train/load_parameters.hpp"

#include <doctest/doctest.h>

#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/core/error.hpp"
#include "gatefold/expert/gated_mlp.hpp"
#include "gatefold/expert/linear.hpp"
#include "gatefold/expert/mlp.hpp"
#include "gatefold/gate/gates.hpp"
#include "gatefold/io/published_maps.hpp"
#include "gatefold/layer/chain.hpp"
#include "gatefold/layer/embedding.hpp"
#include "gatefold/layer/mixture.hpp"
#include "gatefold/layer/residual.hpp"
#include "gatefold/layer/stack.hpp"
#include "gatefold/layer/with_shared.hpp"
#include "gatefold/loss/cross_entropy.hpp"
#include "gatefold/loss/streamed_cross_entropy.hpp"
#include "gatefold/optim/adamw.hpp"
#include "gatefold/train/trainer.hpp"
#include "gatefold/update/momentum.hpp"
#include "support/pass.hpp"
#include "support/temp_directory.hpp"

using namespace gatefold;
using namespace gatefold::support;
using io::MapEntry;

namespace {

constexpr Index dim = 4;

auto model(Index experts = 3) {
  return Chain{
      Embedding{.vocabulary = 7, .model_dim = dim},
      Stack{Residual{update::HeavyBall{}, Mixture{SigmoidTopK{.scores = {.experts = experts}, .selection = {.k = 2}},
                                                  Mlp<Gelu>{.model_dim = dim, .hidden_dim = 5}}},
            2}};
}
/// A pack that lacks the bias of Linear.
struct Only {
  Tensor<float, 3, Cpu> weight;
  GATEFOLD_PACK(weight)
};
template <class Thrown, class F>
std::string what(const F& f) {
  try {
    f();
  } catch (const Thrown& error) {
    return error.what();
  }
  return "nothing was thrown";
}

}  // namespace

TEST_CASE("io::load: returns the parameters of a model, bit for bit") {
  const TempDirectory temp;
  Cpu::Context ctx(1);
  const auto params = init_params<double, Cpu>(model(), ctx, Seed{1});
  io::save(temp.file(), ctx, {}, io::Part{"", params});
  const auto loaded = io::load<double>(temp.file(), ctx, model());
  static_assert(std::is_same_v<decltype(loaded), decltype(params)>);
  expect_like("test", "loaded", params, loaded);
  CHECK(same_bits(values(loaded), values(params)));

  const auto floats = init_params<float, Cpu>(model(), ctx, Seed{2});
  io::save(temp.path / "with_prefix", ctx, {}, io::Part{"model", floats});
  CHECK(same_bits(values(io::load(temp.path / "with_prefix", ctx, model(), "model")), values(floats)));
  io::save(temp.path / "parts", ctx, {}, io::SaveOptions{.max_file_bytes = 256}, io::Part{"", floats});
  CHECK(same_bits(values(io::load(temp.path / "parts", ctx, model())), values(floats)));
}

TEST_CASE("io::load: returns the parameters of an expert") {
  const TempDirectory temp;
  Cpu::Context ctx(1);
  const Linear expert{.model_dim = dim, .output_dim = 3};
  const auto params = init_params<float, Cpu>(as_layer<float, Cpu>(expert), ctx, Seed{1});
  io::save(temp.file(), ctx, {}, io::Part{"", params});
  CHECK(same_bits(values(io::load(temp.file(), ctx, expert)), values(params)));
}

TEST_CASE("io::load: errors name the tensor that does not match") {
  const TempDirectory temp;
  Cpu::Context ctx(1);
  const auto params = init_params<float, Cpu>(model(), ctx, Seed{1});
  io::save(temp.file(), ctx, {}, io::Part{"", params});
  const auto said = [&](const auto& of, const char* prefix = "") {
    return what<FileError>([&] { io::load(temp.file(), ctx, of, prefix); });
  };
  const std::string path = temp.file().string();
  CHECK(said(model(5)).find("tensor \"layers.1.layers.0.branch.") != std::string::npos);
  CHECK(said(model(5)).find("expected [5, ") != std::string::npos);
  CHECK(said(Linear{.model_dim = dim}).find("tensor \"layers.0.place\": unexpected") != std::string::npos);
  CHECK(said(model(), "params").find("unexpected") != std::string::npos);
  CHECK(what<FileError>([&] { io::load<double>(temp.file(), ctx, model()); }).find("dtype: expected F64") !=
        std::string::npos);
  CHECK(what<FileError>([&] { io::load(temp.path / "none", ctx, model()); }).find("cannot open") != std::string::npos);
  const auto one = init_params<float, Cpu>(as_layer<float, Cpu>(Linear{.model_dim = dim}), ctx, Seed{1});
  Tensor<float, 3, Cpu> weight = clone(ctx, one.branch.expert.weight);
  const Only only{std::move(weight)};
  io::save(temp.path / "less", ctx, {}, io::Part{"", only});
  CHECK(what<FileError>([&] {
          io::load(temp.path / "less", ctx, Linear{.model_dim = dim});
        }).ends_with("tensor \"bias\": missing"));
  CHECK(what<ArgumentError>([&] { io::load(temp.file(), ctx, model(0)); }) ==
        what<ArgumentError>([&] { init_params<float, Cpu>(model(0), ctx, Seed{}); }));
}

TEST_CASE("io::load: GatedMlp without biases loads files without biases") {
  const TempDirectory temp;
  Cpu::Context ctx(1);
  const auto made = init_params<float, Cpu>(as_layer<float, Cpu>(GatedMlp<Silu>{dim, 5}), ctx, Seed{1});
  const auto& of = made.branch.expert;
  const auto gate = clone(ctx, of.gate), up = clone(ctx, of.up), down = clone(ctx, of.down);
  io::save(temp.file(), ctx, {}, io::Part{"gate", gate}, io::Part{"up", up}, io::Part{"down", down});
  CHECK(same_bits(values(io::load(temp.file(), ctx, GatedMlp<Silu>{dim, 5})), values(made)));
  CHECK(what<FileError>([&] {
          io::load(temp.file(), ctx, GatedMlp<Silu>{.model_dim = dim, .hidden_dim = 5, .bias = true});
        }).ends_with("_bias\": missing"));
}

TEST_CASE("io::load: reads a model's parameters through a tensor map") {
  const TempDirectory temp;
  Cpu::Context ctx(1);
  const Mixture block{SoftmaxTopK{.scores = {.experts = 3, .bias = false}, .selection = {.k = 2}},
                      GatedMlp<Silu>{dim, 5}};
  const auto params = init_params<float, Cpu>(block, ctx, Seed{1});
  const io::TensorMap map = io::published::mixtral("m.");
  io::save(temp.file(), ctx, {}, map, params);
  CHECK(same_bits(values(io::load(temp.file(), ctx, map, block)), values(params)));
  CHECK(same_bits(values(io::load<double>(io::TensorFiles(temp.file()), ctx, map, block)), values(params)));
  auto other = block;
  other.gate.scores.experts = 4;
  CHECK(what<FileError>([&] { io::load(temp.file(), ctx, map, other); }).find("expected [4, 4], got [3, 4]") !=
        std::string::npos);
}

TEST_CASE("io::load: tensors outside the map keep their initial values") {
  const TempDirectory temp;
  Cpu::Context ctx(1);
  const WithShared block{Mixture{gatefold::published::deepseek_v3({.experts = 4, .k = 2, .groups = 2, .top_groups = 1}),
                                 GatedMlp<Silu>{dim, 5}},
                         GatedMlp<Silu>{dim, 3}};
  auto params = init_params<float, Cpu>(block, ctx, Seed{1});
  const io::TensorMap map = io::published::deepseek_v3("m.");
  io::save(temp.file(), ctx, {}, map, params);
  const auto loaded = io::load(temp.file(), ctx, map, block);
  CHECK(loaded.branch.gate.selection.speed(0) == 0.001f);
  CHECK(same_bits(values(loaded), values(params)));
}

TEST_CASE("load_model: returns the parameters of a checkpoint") {
  const TempDirectory temp;
  Cpu::Context ctx(1);
  const std::vector<Index> ids{1, 2, 3}, next{2, 3, 0};
  Trainer trainer{ctx, model(), CrossEntropy{}, optim::AdamW{}, Seed{1}};
  trainer.step(ids, next);
  save_checkpoint(temp.file(), trainer);
  CHECK(same_bits(values(load_model(temp.file(), ctx, model())), values(trainer.params)));
  Trainer learning{ctx, model(), StreamedCrossEntropy{.vocabulary = 7, .model_dim = dim}, optim::AdamW{}, Seed{1}};
  learning.step(ids, next);
  save_checkpoint(temp.file(), learning);
  CHECK(same_bits(values(load_model(temp.file(), ctx, model())), values(learning.model())));
  CHECK(what<FileError>([&] { load_model(temp.file(), ctx, model(4)); }).find("expected [4, ") != std::string::npos);
}
