// expect: gatefold: a gate needs a member template Plan<T, B> \(for example SparsePlan\) and Index experts\(\) const; see docs/how-to/extending\.md#gate
#include <gatefold/gatefold.hpp>

using namespace gatefold;

#ifndef GATEFOLD_FAIL
using Gate = SoftmaxTopK;
#else
struct Gate {
  Index experts() const { return 2; }
};
#endif

int main() {
  Cpu::Context ctx;
  Trainer trainer{ctx, Mixture{Gate{}, Linear{.model_dim = 2}}, MeanSquaredError{}, optim::Sgd{}, Seed{1}};
}
