// Compiled once for each instruction set, with -DPART=narrow and the like.
#include "part.hpp"

#include <gatefold/backend/cpu/cpu.hpp>
#include <gatefold/expert/activation.hpp>
#include <gatefold/expert/mlp.hpp>
#include <gatefold/gate/gates.hpp>
#include <gatefold/gate/scores/linear_scores.hpp>
#include <gatefold/gate/selection/top_k.hpp>
#include <gatefold/layer/frozen.hpp>
#include <gatefold/layer/mixture.hpp>
#include <gatefold/layer/residual.hpp>
#include <gatefold/loss/mean_squared_error.hpp>
#include <gatefold/optim/adamw.hpp>
#include <gatefold/train/trainer.hpp>
#include <gatefold/update/momentum.hpp>
#include <utility>

#define GATEFOLD_JOIN(a, b) a##b
#define GATEFOLD_NAME(a, b) GATEFOLD_JOIN(a, b)
#define GATEFOLD_TEXT(a) #a
#define GATEFOLD_STRING(a) GATEFOLD_TEXT(a)

using namespace gatefold;

namespace {

constexpr Index items = 120, dim = 40;  // no multiple of a panel

auto make_layer() {
  return Residual{update::HeavyBall{}, Mixture{SoftmaxTopK{.scores = {.experts = 4}, .selection = {.k = 2}},
                                               Mlp<Gelu>{.model_dim = dim, .hidden_dim = 72}}};
}
using Layer = decltype(make_layer());
using Parameters = decltype(make_layer().init<float, Cpu>(std::declval<Cpu::Context&>(), Seed{1}));

template <class P>
std::vector<float> run(Cpu::Context& ctx, const P& params) {
  const Layer layer = make_layer();
  Carry<Layer, float, Cpu> carry;
  const auto x = uniform_tensor<float>(ctx, Seed{2}, 1.0, items, dim);
  Tensor<float, 2, Cpu> y(items, dim);
  layer.begin(ctx, model_params(params), items, carry);
  infer(layer, ctx, params, x, carry, y);
  return {y.data(), y.data() + y.size()};
}

struct Model {
  Cpu::Context ctx{1};
  FrozenParams<Parameters, Cpu> params = freeze(ctx, make_layer().init<float, Cpu>(ctx, Seed{1}));
};

Part part() {
  return {GATEFOLD_STRING(PART),
          [] {
            Cpu::Context ctx(2);
            return run(ctx, make_layer().init<float, Cpu>(ctx, Seed{1}));
          },
          [] {
            Cpu::Context ctx(2);
            return run(ctx, freeze(ctx, make_layer().init<float, Cpu>(ctx, Seed{1}), {.weights = Weights::unchanged}));
          },
          [] {
            Cpu::Context ctx(2);
            const auto x = uniform_tensor<float>(ctx, Seed{2}, 1.0, items, dim),
                       target = uniform_tensor<float>(ctx, Seed{3}, 1.0, items, dim);
            Trainer trainer{ctx, make_layer(), MeanSquaredError{}, optim::AdamW{.lr = 1e-3}, Seed{4}};
            for (int step = 0; step < 3; ++step) trainer.step(x, target);
            std::vector<float> all;
            for_each_tensor([&](const Name&, const auto& t) { all.insert(all.end(), t.data(), t.data() + t.size()); },
                            trainer.params);
            return all;
          },
          []() -> void* { return new Model; },
          [](void* model) {
            Model& m = *static_cast<Model*>(model);
            return run(m.ctx, m.params);
          },
          [](void* model) { delete static_cast<Model*>(model); }};
}

}  // namespace

Part GATEFOLD_NAME(part_, PART)() { return part(); }
