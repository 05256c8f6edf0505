// expect: gatefold: validate of an optimizer must be callable as validate\(\) const; see docs/reference/optional_members\.md
// expect: gatefold: expect_step of an optimizer must be callable as expect_step\(params, grads, state\) const; see docs/reference/optional_members\.md
// expect: gatefold: measure of an optimizer must be callable as measure\(ctx, grads\) const, whose result has a const double\* total; see docs/reference/optional_members\.md
// expect: gatefold: reduce of an optimizer must be callable as reduce\(ctx, grads\) const; see docs/reference/optional_members\.md
// expect: gatefold: counters of a State must be callable as static counters\(f, state\); see docs/reference/optional_members\.md
// Members with the right names that cannot be called with the arguments of their family.
#include <gatefold/gatefold.hpp>

#include "gatefold/train/checkpoint.hpp"

using namespace gatefold;

struct Odd : optim::Sgd {
#ifdef GATEFOLD_FAIL
  void validate(Index) const {}
  void expect_step() const {}
  void measure() const {}
#endif
};

struct OnShards : optim::Sgd {
#ifdef GATEFOLD_FAIL
  void reduce() const {}
#endif
};
template <class Pack>
struct OddState {
  Index step = 0;
  static void each(auto&&, auto&...) {}
#ifdef GATEFOLD_FAIL
  void counters() const {}
#endif
};

int main() {
  Cpu::Context ctx;
  Trainer trainer{ctx, Linear{.model_dim = 2}, MeanSquaredError{}, Odd{}, Seed{1}};
  const Tensor<float, 2, Cpu> x(1, 2);
  trainer.step(x, x);
  optim::expect_step(Odd{}, trainer.params, trainer.grads, trainer.state);
  optim::reduce_gradients(OnShards{}, ctx, trainer.grads);
  OddState<int> state;
  optim::for_each_counter([](const Name&, Index) {}, Name{}, state);
}
