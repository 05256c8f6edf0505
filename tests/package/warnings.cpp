// Policies that no example has, for warnings.sh.
#include <gatefold/gatefold.hpp>

using namespace gatefold;

int main() {
  Cpu::Context ctx;
  const Residual layer{update::SharpnessAware{},
                       Mixture{SoftmaxNoisyTopK{.scores = {.experts = 3}}, Linear{.model_dim = 4}}};
  Trainer trainer{ctx, layer, MeanSquaredError{}, optim::Sgd{}, Seed{1}};
  const auto x = uniform_tensor<float>(ctx, Seed{2}, 1.0, 5, 4);
  trainer.step(x, x);
}
