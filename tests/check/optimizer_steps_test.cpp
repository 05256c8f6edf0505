#include "gatefold/check/optimizer_steps.hpp"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/core/types.hpp"
#include "gatefold/expert/linear.hpp"
#include "gatefold/expert/mlp.hpp"
#include "gatefold/optim/adamw.hpp"
#include "gatefold/optim/clip.hpp"
#include "gatefold/optim/normalized_gd.hpp"
#include "gatefold/optim/schedule.hpp"
#include "gatefold/optim/sgd.hpp"
#include "gatefold/tensor/tensor.hpp"

using namespace gatefold;

namespace {

enum class Fault { none, number_left_out, number_of_its_own, unlisted, expects_nothing };

int steps_ever = 0;

/// Descent at a rate that halves, with a mean of what it stepped.
template <Fault kFault>
struct Halving {
  using IsOptimizer = void;
  double lr = 0.5;

  template <class Pack>
  struct State {
    Pack mean;
    double rate = 0, squares = 0;
    Index step = 0;
    Tensor<float, 1, Cpu> unseen;
    static void each(auto&& f, auto&... s) {
      f("mean", s.mean...);
      if constexpr (kFault != Fault::unlisted) f("unseen", s.unseen...);
    }
    static void counters(auto&& f, auto&... s) {
      f("step", s.step...);
      if constexpr (kFault != Fault::number_left_out) f("rate", s.rate...);
      f("squares", s.squares...);
    }
  };
  template <class C, class Pack>
  State<Pack> begin(C& ctx, const Pack& params) const {
    return {zeros_like(ctx, params), lr, 0, 0, {}};
  }
  template <class Pack>
  void expect_step(const Pack& params, const Pack& grads, const State<Pack>&) const {
    if constexpr (kFault != Fault::expects_nothing) expect_like("Halving.step", "grads", params, grads);
  }
  template <class C, class Pack>
  void step(C&, Pack& params, Pack& grads, State<Pack>& state) const {
    expect_step(params, grads, state);
    state.rate *= 0.75;
    ++state.step;
    if (kFault == Fault::number_of_its_own) state.rate += 1e-3 * ++steps_ever;
    for_each_tensor(
        [&](const Name&, auto& p, auto& g, auto& mean) {
          for (Index i = 0; i < p.size(); ++i) {
            mean.data()[i] += (g.data()[i] - mean.data()[i]) / static_cast<float>(state.step);
            p.data()[i] -= static_cast<float>(state.rate) * mean.data()[i];
          }
        },
        params, grads, state.mean);
  }
};

const Mlp<Gelu> kModel{.model_dim = 5, .hidden_dim = 7};

template <class O>
std::string found(const O& optimizer) {
  std::string text;
  for (const auto& sentence : check::optimizer_steps<Cpu>(optimizer, kModel)) text += sentence + "\n";
  return text;
}

}  // namespace

TEST_CASE("optimizers of the library, and wrapped ones, keep what they promise") {
  CHECK(found(optim::Sgd{.lr = 0.1, .momentum = 0.9}) == "");
  CHECK(found(optim::AdamW{.lr = 0.01, .decay = 0.1}) == "");
  CHECK(found(optim::NormalizedGd{.lr = 0.1}) == "");
  CHECK(found(optim::Clipped{optim::AdamW{.lr = 0.01}, 0.5}) == "");
  CHECK(found(optim::Scheduled{optim::Sgd{.lr = 0.1}, optim::WarmupCosine{.warmup = 3, .total = 20}}) == "");
}

TEST_CASE("an optimizer of one's own passes, and one with a fault is told which") {
  CHECK(found(Halving<Fault::none>{}) == "");
  CHECK(found(Halving<Fault::number_left_out>{}) ==
        "other bits where a run goes on from a checkpoint: the state keeps what its `each` and its `counters` do not "
        "list\n");
  CHECK(found(Halving<Fault::number_of_its_own>{}).find("two runs differ: is there state outside the arguments?\n") !=
        std::string::npos);
  CHECK(found(Halving<Fault::unlisted>{}).starts_with("state: 24 bytes in a row belong to no tensor or pack"));
  CHECK(found(Halving<Fault::expects_nothing>{}) == "expect_step lets gradients of another extent pass\n");
}
