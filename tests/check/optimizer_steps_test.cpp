#include "gatefold/check/optimizer_steps.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <mutex>
#include <string>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/core/types.hpp"
#include "gatefold/expert/linear.hpp"
#include "gatefold/expert/mlp.hpp"
#include "gatefold/gate/composed_gate.hpp"
#include "gatefold/gate/selection/sigmoid_bias.hpp"
#include "gatefold/layer/mixture.hpp"
#include "gatefold/optim/adamw.hpp"
#include "gatefold/optim/clip.hpp"
#include "gatefold/optim/normalized_gd.hpp"
#include "gatefold/optim/schedule.hpp"
#include "gatefold/optim/sgd.hpp"
#include "gatefold/tensor/tensor.hpp"
#include "gatefold/train/in_groups.hpp"

using namespace gatefold;

namespace {

enum class Fault {
  none,
  number_left_out,
  number_of_its_own,
  unlisted,
  expects_nothing,
  keeps_scratch,
  counts_nothing,
  steps_all,
  order_of_terms,
};

int steps_ever = 0;

/// sum += 1 / (i + 3) in the order in which threads reach the rows.
struct AddAsTheyCome {
  float* sum;
  std::mutex* one_at_a_time;
  void operator()(Index i) const {
    const std::lock_guard lock(*one_at_a_time);
    *sum += 1 / static_cast<float>(i + 3);
  }
};

/// Descends along the mean of all gradients so far, at a rate that each step multiplies by 3/4.
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
  void step(C& ctx, Pack& params, Pack& grads, State<Pack>& state) const {
    expect_step(params, grads, state);
    if (kFault == Fault::keeps_scratch) ctx.template scratch<float>(3);
    state.rate *= 0.75;
    if (kFault != Fault::counts_nothing) ++state.step;
    if (kFault == Fault::number_of_its_own) state.rate += 1e-3 * ++steps_ever;
    if (kFault == Fault::order_of_terms) {
      float sum = 0;
      std::mutex one_at_a_time;
      C::Backend::for_each(ctx, 1000, AddAsTheyCome{&sum, &one_at_a_time});
      state.rate *= 1 + 1e-2 * sum;
    }
    const auto step_one = [&](const Name&, auto& p, auto& g, auto& mean) {
      for (Index i = 0; i < p.size(); ++i) {
        mean.data()[i] += (g.data()[i] - mean.data()[i]) / static_cast<float>(std::max<Index>(state.step, 1));
        p.data()[i] -= static_cast<float>(state.rate) * mean.data()[i];
      }
    };
    if constexpr (kFault == Fault::steps_all) {
      for_each_tensor(step_one, params, grads, state.mean);
    } else {
      for_each_learned(step_one, params, grads, state.mean);
    }
  }
};

const Mlp<Gelu> kModel{.model_dim = 5, .hidden_dim = 7};

template <class O, class M = Mlp<Gelu>>
std::string found(const O& optimizer, const M& model = kModel) {
  std::string text;
  for (const auto& sentence : check::optimizer_steps<Cpu>(optimizer, model)) text += sentence + "\n";
  return text;
}

}  // namespace

TEST_CASE("optimizer_steps: optimizers and wrappers of the library pass") {
  CHECK(found(optim::Sgd{.lr = 0.1, .momentum = 0.9}) == "");
  CHECK(found(optim::AdamW{.lr = 0.01, .decay = 0.1}) == "");
  CHECK(found(optim::NormalizedGd{.lr = 0.1}) == "");
  CHECK(found(optim::Clipped{optim::AdamW{.lr = 0.01}, 0.5}) == "");
  CHECK(found(InGroups{is_weight, optim::AdamW{.lr = 0.01}, optim::Sgd{.lr = 0.1}}) == "");
  CHECK(found(optim::Scheduled{optim::Sgd{.lr = 0.1}, optim::WarmupCosine{.warmup = 3, .total = 20}}) == "");
}

TEST_CASE("optimizer_steps: a user-defined optimizer passes; faults are reported") {
  CHECK(found(Halving<Fault::none>{}) == "");
  CHECK(found(Halving<Fault::number_left_out>{}) ==
        "a run that continues from a checkpoint gives different bits: the state has a member that neither `each` nor "
        "`counters` lists\n");
  CHECK(found(Halving<Fault::number_of_its_own>{}).find("two runs differ: is there state outside the arguments?\n") !=
        std::string::npos);
  CHECK(found(Halving<Fault::unlisted>{}).starts_with("state: 24 consecutive bytes belong to no tensor or pack"));
  CHECK(found(Halving<Fault::expects_nothing>{}) == "expect_step accepts gradients with a wrong extent\n");
  CHECK(found(Halving<Fault::keeps_scratch>{}) ==
        "scratch memory was not released: write `auto mark = ctx.mark();` before ctx.scratch\n");
  CHECK(found(Halving<Fault::counts_nothing>{}) ==
        "state.step is 0 after 12 steps: step must increase state.step by 1, because schedules read it\n");
  CHECK(found(Halving<Fault::order_of_terms>{}) ==
        "different bits on 2 threads than on 1\ndifferent bits on 3 threads than on 1\ndifferent bits on 8 threads "
        "than on 1\n");
  const Mixture mixture{ComposedGate<LinearScores, Independent, SigmoidBias>{.scores = {.experts = 3}}, kModel};
  CHECK(found(Halving<Fault::none>{}, mixture) == "");
  CHECK(found(Halving<Fault::steps_all>{}, mixture) ==
        "tensors that are not learned are stepped: visit the parameters with for_each_learned, which skips them\n");
}
