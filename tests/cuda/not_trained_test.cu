// Parameters that a Trainer on the device does not train.

#include <doctest/doctest.h>

#include <vector>

#include "gatefold/gatefold.cuh"
#include "support/parity.hpp"

using namespace gatefold;
using namespace gatefold::test;

namespace {

constexpr Index dim = 8, items = 20;

/// Returns the values of all tensors except those that `left_out` selects.
template <class P>
std::vector<double> values_but(Cuda::Context& ctx, const P& pack, const std::vector<bool>& left_out) {
  std::vector<double> all;
  std::size_t i = 0;
  for_each_tensor(
      [&](const Name&, const auto& t) {
        if (left_out[i++]) return;
        std::vector<double> values(static_cast<std::size_t>(t.size()));
        Cuda::to_host(ctx, t.size(), t.data(), values.data());
        all.insert(all.end(), values.begin(), values.end());
      },
      pack);
  return all;
}

}  // namespace

TEST_CASE("cuda: NotTrained: skipping gradients changes no other bits") {
  Backends on;
  const Mixture mixture{SoftmaxTopK{.scores = {.experts = 3}, .selection = {.k = 2}},
                        Mlp<Gelu>{.model_dim = dim, .hidden_dim = 16}};
  const Stack model{Residual{update::ZeroOrderHold{}, PreNorm{LayerNorm{}, mixture}}, 2};
  const optim::AdamW adam{.lr = 0.02, .decay = 0.1};
  const auto x = uniform_tensor<double>(on.cuda, Seed{2}, 1, items, dim),
             target = uniform_tensor<double>(on.cuda, Seed{3}, 1, items, dim);
  Trainer all{on.cuda, model, MeanSquaredError{}, adam, Seed{1}, Element<double>{}};
  const double loss = all.step(x, target);
  for (const char* pattern : {"**.expert", "**.gate", "**.rule", "**.norm", "layers.1.branch.branch.expert.up*"}) {
    CAPTURE(pattern);
    const NotTrained except{pattern};
    Trainer some{on.cuda, model, MeanSquaredError{}, adam, Seed{1}, except, Element<double>{}};
    const std::vector<bool> selected = except.of(some.params);
    std::vector<bool> rest = selected;
    rest.flip();
    const auto begin = values_but(on.cuda, some.params, rest);
    CHECK(some.step(x, target) == loss);
    CHECK(values_but(on.cuda, some.grads, selected) == values_but(on.cuda, all.grads, selected));
    CHECK(values_but(on.cuda, some.params, selected) == values_but(on.cuda, all.params, selected));
    CHECK(values_but(on.cuda, some.params, rest) == begin);
    CHECK(values_but(on.cuda, some.grads, rest).empty());
  }
}
