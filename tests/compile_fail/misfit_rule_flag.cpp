// expect: gatefold: evaluations of an update rule must be static constexpr int; see docs/reference/optional_members\.md
// Members that are named and cannot be called as their family asks.
#include <gatefold/gatefold.hpp>

using namespace gatefold;

struct Odd : update::HeavyBall {
#ifdef GATEFOLD_FAIL
  static const int evaluations;  // no number that a compiler knows
#endif
};

int main() {
  Cpu::Context ctx;
  Trainer trainer{ctx, Residual{Odd{}, OneExpert{Linear{.model_dim = 2}}}, MeanSquaredError{}, optim::Sgd{}, Seed{1}};
}
