// expect: gatefold: the expert in a HiddenDropout \(for example Mlp or GatedMlp\) must multiply its hidden values by factor \[S, hidden_dim\], the last argument of forward, infer, backward and weighted_backward; see docs/how-to/extending\.md#expert
// An expert that declares its hidden width, but whose functions take no dropout factors.
#include <gatefold/gatefold.hpp>

using namespace gatefold;

int main() {
#ifdef GATEFOLD_FAIL
  const TransformerExpert<Gelu> expert{.model_dim = 4, .hidden_dim = 3, .heads = 2, .length = 2};
#else
  const Mlp<Relu> expert{.model_dim = 8, .hidden_dim = 3};
#endif
  Cpu::Context ctx;
  const Mixture mixture{SoftmaxTopK{.scores = {.experts = 2}}, HiddenDropout{0.1, expert}};
  Trainer trainer{ctx, Stack{Residual{update::Plain{}, mixture}, 2}, MeanSquaredError{}, optim::AdamW{}, Seed{1}};
  const auto x = uniform_tensor<float>(ctx, Seed{1}, 1.0, 4, 8);
  trainer.step(x, x);
}
