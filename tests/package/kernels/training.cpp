// Trains in float and double and prints losses and parameters exactly. With gatefold::io, it saves the parameters to a
// file and prints those that it loads again.
#include <cstdio>
#include <gatefold/gatefold.hpp>
#if defined(WITH_IO)
#include <gatefold/io.hpp>
#endif
using namespace gatefold;

template <class T>
void train() {
  Cpu::Context ctx(2);
  const Stack model{Residual{update::HeavyBall{.mu = 0.7, .gamma = 1.0},
                             Mixture{SoftmaxTopK{.scores = {.experts = 5}, .selection = {.k = 2}},
                                     Mlp<Gelu>{.model_dim = 19, .hidden_dim = 300}}},
                    3};
  Trainer trainer{ctx, model, MeanSquaredError{}, optim::AdamW{.lr = 3e-3}, Seed{42}, Element<T>{}};
  const auto x = uniform_tensor<T>(ctx, Seed{1}, 1.0, 131, 19);
  const auto target = uniform_tensor<T>(ctx, Seed{2}, 1.0, 131, 19);
  for (int step = 0; step < 5; ++step) std::printf("%a\n", trainer.step(x, target));
#if defined(WITH_IO)
  save_checkpoint("training.safetensors", trainer);
  set_zero(ctx, trainer.params);
  load_checkpoint("training.safetensors", trainer);
#endif
  for_each_tensor(
      [&](const Name& name, const auto& tensor) {
        for (Index i = 0; i < tensor.size(); ++i)
          std::printf("%s %a\n", name.str().c_str(), static_cast<double>(tensor.data()[i]));
      },
      trainer.params);
}

int main() {
  train<float>();
  train<double>();
}
