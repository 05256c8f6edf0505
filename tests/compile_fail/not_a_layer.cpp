// expect: gatefold: a Stack, Chain, Block, PerToken or Trainer needs a layer, a branch or an expert: a type with the in_dim, out_dim, init, forward and backward of one of these families; see docs/how-to/extending\.md
#include <gatefold/gatefold.hpp>

using namespace gatefold;

#ifndef GATEFOLD_FAIL
using Part = Linear;
#else
struct Part {
  Index model_dim = 0;
  Index in_dim() const { return model_dim; }
  Index out_dim() const { return model_dim; }
};
#endif

int main() {
  Cpu::Context ctx;
  Trainer trainer{ctx, Stack{Part{.model_dim = 2}, 3}, MeanSquaredError{}, optim::Sgd{}, Seed{1}};
}
