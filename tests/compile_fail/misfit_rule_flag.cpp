// expect: gatefold: evaluations of an update rule must be static constexpr int; see docs/reference/optional_members\.md
// Members with the right names that cannot be called with the arguments of their family.
#include <gatefold/gatefold.hpp>

using namespace gatefold;

struct Odd : update::HeavyBall {
#ifdef GATEFOLD_FAIL
  static const int evaluations;  // not known at compile time
#endif
};

int main() {
  Cpu::Context ctx;
  Trainer trainer{ctx, Residual{Odd{}, OneExpert{Linear{.model_dim = 2}}}, MeanSquaredError{}, optim::Sgd{}, Seed{1}};
}
