// Trainer, InputGradient and RoutedTrainer on a backend that keeps copies of rounded weights. Results have the same
// bits as without copies. Unless parameters are written, the weights are rounded once per step or call.

#include <doctest/doctest.h>

#include <type_traits>
#include <vector>

#include "gatefold/papers/routed_trainer.hpp"
#include "gatefold/train/checkpoint.hpp"
#include "gatefold/train/input_gradient.hpp"
#include "support/keeping.hpp"
#include "support/rounded_training.hpp"
#include "support/temp_directory.hpp"

using namespace gatefold;
using namespace gatefold::support;
using namespace gatefold::support::rounded_training;

namespace {

/// Saves a checkpoint after the first step, and loads it from time 2 on, also between the parts of a step.
struct LoadTheFirst {
  const std::filesystem::path& path;
  void operator()(auto& trainer, Index time) const {
    if (time == 0) save_checkpoint(path, trainer);
    if (time >= 2) load_checkpoint(path, trainer);
  }
};

/// Appends at each call how many weight tensors were rounded so far.
struct Note {
  std::vector<Index>& all;
  void operator()(auto&, Index) const { all.push_back(Keeping::rounded); }
};
template <class W = Nobody>
std::vector<Index> rounded_in(bool keeps, const W& write = {}) {
  Keeping::Context ctx(2);
  std::vector<Index> all;
  Keeping::rounded = 0;
  train<Keeping>(ctx, optim::AdamW{}, keeps, false, write, Note{all});
  return all;
}

}  // namespace

TEST_CASE("rounded weights: keeping rounded copies changes no bit of training") {
  const optim::AdamW adamw{.lr = 0.05};
  for (const bool recompute : {false, true}) {
    CHECK(same_with_copies<Keeping>(adamw, recompute));
    CHECK(same_with_copies<Keeping>(adamw, recompute, OneWeight{}));
  }
  CHECK(same_with_copies<Keeping>(adamw, false, CopyBack{}));
  CHECK(same_with_copies<Keeping>(adamw, false, Replace{}));
  CHECK(same_with_copies<Keeping>(optim::Clipped{optim::Sgd{.lr = 0.3, .momentum = 0.9}, 0.5}));
  CHECK(same_with_copies<Keeping>(frozen_weights(), false, OneWeight{}));
  const TempDirectory temp;
  const auto path = temp.path / "run";
  CHECK(same_with_copies<Keeping>(adamw, false, LoadTheFirst{path}));
}

TEST_CASE("rounded weights: training has the bits of CpuBf16") {
  CpuBf16::Context plain(1);
  const auto expected = train<CpuBf16>(plain, optim::AdamW{}, true);
  for (const int threads : {1, 2, 3}) {
    Keeping::Context ctx(threads);
    CHECK(same_bits(train<Keeping>(ctx, optim::AdamW{}, true), expected));
  }
}

TEST_CASE("rounded weights: Trainer rounds once per step and after writes") {
  // Steps of 1, 3, 1 and 3 parts.
  CHECK(rounded_in(true) == std::vector<Index>{4, 8, 8, 8, 12, 16, 16, 16});
  CHECK(rounded_in(true, OneWeight{}) == std::vector<Index>{4, 8, 12, 16, 20, 24, 28, 32});
  CHECK(rounded_in(false) == std::vector<Index>(8, 0));
  static_assert(banks == 4);
}

TEST_CASE("rounded weights: the first part of a step rounds again") {
  const auto run = [](bool keeps) {
    Keeping::Context ctx(1);
    Trainer trainer{ctx, model(), MeanSquaredError{}, optim::Sgd{.lr = 0.1}, Seed{1}};
    trainer.keeps_rounded = keeps;
    const auto x = uniform_tensor<float>(ctx, Seed{2}, 1, items, dim);
    const View<float, 3, Keeping> before = trainer.params.layers[0].layer.branch.expert.up;
    trainer.accumulate(x, x);
    trainer.forget();
    for (Index e = 0; e < 3; ++e) before(e, 1, 2) = 5;
    trainer.step(x, x);
    return rounded_training::values<Keeping>(ctx, trainer.params);
  };
  CHECK(same_bits(run(true), run(false)));
}

TEST_CASE("InputGradient, RoutedTrainer: round weights once for each call") {
  Keeping::Context ctx(2);
  const auto x = uniform_tensor<float>(ctx, Seed{2}, 1, items, dim);
  const auto of_items = [&](bool keeps) {
    const auto net = model();
    using Layer = std::decay_t<decltype(net)>;
    auto params = init_params<float, Keeping>(net, ctx, Seed{1});
    InputGradient gradient{ctx, net, MeanSquaredError{}};
    gradient.keeps_rounded = keeps;
    Keeping::rounded = 0;
    std::vector<float> all;
    for (const float written : {0.5f, 4.f}) {
      params.layers[0].layer.branch.expert.up(1, 2, 3) = written;
      Tensor<float, 2, Keeping> dx(items, dim);
      gradient(params, x, x, dx);
      const auto found = rounded_training::values<Keeping>(ctx, dx);
      all.insert(all.end(), found.begin(), found.end());
    }
    static_assert(std::is_same_v<typename decltype(gradient)::Params, Params<Layer, float, Keeping>>);
    CHECK(Keeping::rounded == (keeps ? 2 * banks : 0));
    return all;
  };
  CHECK(same_bits(of_items(true), of_items(false)));

  const auto routed = [&](bool keeps) {
    const Mixture mixture{SoftmaxTopK{.scores = {.experts = 3}, .selection = {.k = 1}},
                          Mlp<Gelu>{.model_dim = dim, .hidden_dim = 9}};
    RoutedTrainer trainer{ctx, mixture, MeanSquaredError{}, Seed{1}};
    trainer.keeps_rounded = keeps;
    Keeping::rounded = 0;
    std::vector<float> all;
    for (const float written : {0.5f, 4.f}) {
      trainer.params.expert.up(1, 2, 3) = written;
      trainer.gradients(x, x);
      const auto found = rounded_training::values<Keeping>(ctx, trainer.grads);
      all.insert(all.end(), found.begin(), found.end());
    }
    CHECK(Keeping::rounded == (keeps ? 2 * 2 : 0));
    return all;
  };
  CHECK(same_bits(routed(true), routed(false)));
}
