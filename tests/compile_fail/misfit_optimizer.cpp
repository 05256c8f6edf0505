// expect: gatefold: validate of an optimizer must be callable as validate\(\) const; see docs/extending\.md#optional-members
// expect: gatefold: measure of an optimizer must be callable as measure\(ctx, grads\) const; see docs/extending\.md#optional-members
// Members that are named and cannot be called as their family asks.
#include <gatefold/gatefold.hpp>

using namespace gatefold;

struct Odd : optim::Sgd {
#ifdef GATEFOLD_FAIL
  void validate(Index) const {}
  void measure() const {}
#endif
};

int main() {
  Cpu::Context ctx;
  Trainer trainer{ctx, Linear{.model_dim = 2}, MeanSquaredError{}, Odd{}, Seed{1}};
  const Tensor<float, 2, Cpu> x(1, 2);
  trainer.step(x, x);
}
