// expect: gatefold: evaluations of an update rule must be static constexpr int; see docs/reference/optional_members\.md
// A number with the right name that is not static constexpr.
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
