// The program of docs/how-to/routers.md: trains a small model with each router.
#include <cstdio>
#include <gatefold/gatefold.hpp>
using namespace gatefold;

/// Trains a branch on products of columns, and returns whether the loss falls to less than half.
bool learns(const char* name, Cpu::Context& ctx, const auto& branch) {
  Trainer trainer{ctx, Residual{update::Plain{}, branch}, MeanSquaredError{}, optim::AdamW{.lr = 3e-3}, Seed{1}};
  double first = 0, last = 0;
  for (std::uint64_t step = 0; step < 200; ++step) {
    const auto x = uniform_tensor<float>(ctx, Seed{2}.fork(step), 1.0, 64, branch.in_dim());
    Tensor<float, 2, Cpu> target(x.extent(0), x.extent(1));
    for (Index n = 0; n < x.extent(0); ++n)
      for (Index d = 0; d < x.extent(1); ++d) target(n, d) = x(n, d) + x(n, 0) * x(n, 1);
    last = trainer.step(x, target);
    if (step == 0) first = last;
  }
  std::printf("%-16s loss %.4f, at the end %.4f\n", name, first, last);
  return last < first / 2;
}

int main() {
  Cpu::Context ctx(2);
  bool all = true;
  {
    // [snippet latent]
    const Mixture narrow{SoftmaxTopK{.scores = {.experts = 16}, .selection = {.k = 4}},
                         Mlp<Gelu>{.model_dim = 4, .hidden_dim = 16}};  // the experts read 4 columns
    const WithShared branch{LatentMixture{narrow, 16}, Mlp<Gelu>{.model_dim = 16, .hidden_dim = 8}};
    // [/snippet]
    all = learns("LatentMixture", ctx, branch) && all;
  }
  {
    // [snippet groups]
    const HierarchicalGate gate{SoftmaxTopK{.scores = {.experts = 4}, .selection = {.k = 2}},  // 2 of 4 groups
                                SoftmaxTopK{.scores = {.experts = 8}, .selection = {.k = 1, .renormalise = false}}};
    const Mixture branch{gate, Mlp<Gelu>{.model_dim = 8, .hidden_dim = 16}};  // 4 · 8 experts
    // [/snippet]
    all = learns("HierarchicalGate", ctx, branch) && all;
  }
  {
    // [snippet bias]
    const SigmoidTopK gate{.scores = {.experts = 8},
                           .selection = {.k = 2, .score = RouterScore::softmax, .centred = true}};
    const Mixture branch{gate, Mlp<Gelu>{.model_dim = 8, .hidden_dim = 16}};
    // [/snippet]
    all = learns("softmax, bias", ctx, branch) && all;
  }
  {
    // [snippet relu]
    const ReMoe gate{.scores = {.experts = 8},
                     .selection = {.k = 2, .coefficient = 1e-4, .rate = 1.05}};  // 2 experts on average
    const Mixture branch{gate, Mlp<Gelu>{.model_dim = 8, .hidden_dim = 16}};
    // [/snippet]
    all = learns("ReMoe", ctx, branch) && all;
  }
  {
    // [snippet sequences]
    const WithAuxiliary<SoftmaxTopK, SequenceBalance> gate{
        .scores = {.experts = 8},
        .selection = {.k = 2},
        .auxiliary = {SequenceBalance{.weight = 0.001, .length = 16}}};  // items 0 to 15 are the first sequence
    const Mixture branch{gate, Mlp<Gelu>{.model_dim = 8, .hidden_dim = 16}};
    // [/snippet]
    all = learns("SequenceBalance", ctx, branch) && all;
  }
  {
    // [snippet parts]
    using Gate = ComposedGate<LinearScores, Independent, GlobalBalance<TopK>>;
    const Gate gate{.scores = {.experts = 8}, .selection = {.selection = {.k = 2}, .weight = 0.01}};
    const Mixture branch{gate, Mlp<Gelu>{.model_dim = 8, .hidden_dim = 16}};
    // [/snippet]
    all = learns("GlobalBalance", ctx, branch) && all;
  }
  {
    // [snippet random_second]
    const Mixture branch{published::gshard({.experts = 8}), Mlp<Gelu>{.model_dim = 8, .hidden_dim = 16}};
    Trainer trainer{ctx, branch, MeanSquaredError{}, optim::AdamW{}, Seed{1}};
    const auto x = uniform_tensor<float>(ctx, Seed{2}, 1.0, 64, 8),
               target = uniform_tensor<float>(ctx, Seed{3}, 1.0, 64, 8);
    decltype(trainer)::Extra extra;
    extra.selection.random = trainer.noise();  // the random numbers of this step
    trainer.step(x, target, extra);
    // [/snippet]
  }
  {
    // [snippet competition]
    const Mixture mixture{SoftmaxTopK{.scores = {.experts = 8}, .selection = {.k = 2}},
                          Mlp<Gelu>{.model_dim = 8, .hidden_dim = 16}};
    const Competition branch{mixture, 0.1};  // with probability 0.1, a step is a competition of all experts
    Trainer trainer{ctx, Residual{update::Plain{}, branch}, MeanSquaredError{}, optim::AdamW{.lr = 3e-3}, Seed{1}};
    double loss = 0;
    for (std::uint64_t step = 0; step < 200; ++step) {
      const auto x = uniform_tensor<float>(ctx, Seed{2}.fork(step), 1.0, 64, 8);
      loss = trainer.step(x, x, {.noise = {trainer.noise()}});
    }
    // [/snippet]
    std::printf("%-16s loss at the end %.4f\n", "Competition", loss);
    all = loss < 0.01 && all;
  }
  {
    // [snippet stable]
    const Mixture branch{published::stable_moe({.experts = 8, .vocabulary = 100}),
                         Mlp<Gelu>{.model_dim = 8, .hidden_dim = 16}};
    const optim::AdamW adam{.lr = 3e-3};
    Trainer trainer{ctx, Residual{update::Plain{}, branch}, MeanSquaredError{},
                    InGroups{is_distilled_router, adam, adam}, Seed{1}};
    double loss = 0;
    for (std::uint64_t step = 0; step < 200; ++step) {
      const bool second_stage = step >= 50;
      if (second_stage) trainer.optimizer.first.lr = 0;  // the distilled router keeps its values
      std::vector<Index> ids(64);                        // the token of each item
      for (Index n = 0; n < 64; ++n) ids[std::size_t(n)] = (17 * n + Index(step)) % 100;
      const auto x = uniform_tensor<float>(ctx, Seed{2}.fork(step), 1.0, 64, 8);
      loss = trainer.step(x, x, {.selection = {.ids = ids, .distilled = second_stage}});
    }
    // [/snippet]
    std::printf("%-16s loss at the end %.4f\n", "StableMoe", loss);
    all = loss < 0.01 && all;
  }
  {
    // [snippet capacity]
    using Gate = ComposedGate<LinearScores, Independent, Capacity<TopK>>;
    const Gate gate{.scores = {.experts = 8}, .selection = {.selection = {.k = 2}, .factor = 1, .renormalise = true}};
    const Mixture branch{gate, Mlp<Gelu>{.model_dim = 8, .hidden_dim = 16}};
    // [/snippet]
    all = learns("Capacity", ctx, branch) && all;
  }
  return all ? 0 : 1;
}
