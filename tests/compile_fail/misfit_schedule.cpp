// expect: gatefold: validate of a schedule of momentum must be callable as validate\(\) const; see docs/reference/optional_members\.md
// Members with the right names that cannot be called with the arguments of their family.
#include <gatefold/gatefold.hpp>

using namespace gatefold;

struct Odd : update::RestartingMu {
#ifdef GATEFOLD_FAIL
  void validate(Index) const {}
#endif
};

int main() {
  Cpu::Context ctx;
  Trainer trainer{ctx, Residual{update::ScheduledMomentum<Odd>{}, OneExpert{Linear{.model_dim = 2}}}, MeanSquaredError{},
                  optim::Sgd{}, Seed{1}};
  const Tensor<float, 2, Cpu> x(1, 2);
  trainer.step(x, x);
}
