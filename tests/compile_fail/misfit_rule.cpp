// expect: gatefold: begin of an update rule must be callable as begin\(ctx, items, dim, carry\) const; see docs/reference/optional_members\.md
// expect: gatefold: validate of an update rule must be callable as validate\(params, items, dim, carry\) const; see docs/reference/optional_members\.md
// expect: gatefold: infer of an update rule must be callable as infer\(ctx, params, x, carry, f, y\) const; see docs/reference/optional_members\.md
// expect: gatefold: advance of an update rule must be callable as advance\(carry, u\) const, which returns a functor of elements; see docs/reference/optional_members\.md
// expect: gatefold: advance_backward of an update rule must be callable as advance_backward\(dcarry, du, total\) const, which returns a functor of elements; see docs/reference/optional_members\.md
// Members with the right names that cannot be called with the arguments of their family.
#include <gatefold/gatefold.hpp>

using namespace gatefold;

struct Odd : update::HeavyBall {
#ifdef GATEFOLD_FAIL
  void begin(Index) const {}
  void validate(Index, Index) const {}
  template <class T, class B>
  void infer(typename B::Context&, const Nothing<T, B>&, In<T, 2, B>) const {}
  void advance() const {}
  void advance_backward() const {}
#endif
};

int main() {
  Cpu::Context ctx;
  Trainer trainer{ctx, Residual{Odd{}, OneExpert{Linear{.model_dim = 2}}}, MeanSquaredError{}, optim::Sgd{}, Seed{1}};
}
