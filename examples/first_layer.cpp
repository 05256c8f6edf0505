// The program of docs/tutorials/first_layer.md: one mixture-of-experts layer, forward, without training.
#include <cstdio>
#include <gatefold/gatefold.hpp>
using namespace gatefold;

int main() {
  // [snippet layer]
  const Mixture layer{SoftmaxTopK{.scores = {.experts = 4}, .selection = {.k = 2}},  // gate: 2 of 4 experts per item
                      Mlp<Gelu>{.model_dim = 8, .hidden_dim = 16}};                  // each expert maps [8] to [8]
  // [/snippet]
  // [snippet run]
  Cpu::Context ctx;
  const auto params = layer.init<float, Cpu>(ctx, Seed{1});
  const auto x = uniform_tensor<float>(ctx, Seed{2}, 1.0, 6, 8);  // [N, D]: 6 items of 8 values, from −1 to 1
  Tensor<float, 2, Cpu> u(6, 8);                                  // [N, D]: the output
  infer(layer, ctx, params, x, u);
  std::printf("x[0] = %+.3f %+.3f ...  u[0] = %+.3f %+.3f ...\n", static_cast<double>(x(0, 0)),
              static_cast<double>(x(0, 1)), static_cast<double>(u(0, 0)), static_cast<double>(u(0, 1)));
  // [/snippet]
  // [snippet plan]
  Saved<decltype(layer), float, Cpu> saved;  // everything that backward needs
  layer.forward(ctx, params, x, u, saved);
  const auto& plan = saved.plan;
  for (Index item = 0; item < plan.items(); ++item) {
    std::printf("item %d:", static_cast<int>(item));
    for (Index pick = 2 * item; pick < 2 * item + 2; ++pick)
      std::printf("  expert %d with weight %.2f", static_cast<int>(plan.expert(pick)),
                  static_cast<double>(plan.weight(pick)));
    std::printf("\n");
  }
  // [/snippet]
  // [snippet tensors]
  for_each_tensor(
      [](const Name& name, const auto& tensor) {
        std::printf("%-20s %d values\n", name.str().c_str(), static_cast<int>(tensor.size()));
      },
      params);
  // [/snippet]
  // [snippet swap]
  const Residual step{update::HeavyBall{.mu = 0.7}, layer};  // y = x + momentum step, instead of u
  const Mixture similar{SimilarityAware<SoftmaxTopK>{.scores = {.experts = 4}, .selection = {.k = 2}},
                        GatedMlp<Silu>{.model_dim = 8, .hidden_dim = 16}};
  // [/snippet]
  std::printf("%d and %d values\n", static_cast<int>(count_values(step.init<float, Cpu>(ctx, Seed{1}))),
              static_cast<int>(count_values(similar.init<float, Cpu>(ctx, Seed{1}))));
}
