// expect: gatefold: validate of a layer must be callable as validate\(params, items, carry, extra\) const; see docs/reference/optional_members\.md
// expect: gatefold: infer of a layer must be callable as infer\(ctx, params, x, carry, y, extra\) const; see docs/reference/optional_members\.md
// Members with the right names that cannot be called with the arguments of their family.
#include <gatefold/gatefold.hpp>

using namespace gatefold;

using Base = NoResidual<OneExpert<Linear>>;
struct Odd : Base {
#ifdef GATEFOLD_FAIL
  void validate() const {}
  void infer() const {}
#endif
};

int main() {
  Cpu::Context ctx;
  Trainer trainer{ctx, Odd{{{{.model_dim = 2}}}}, MeanSquaredError{}, optim::Sgd{}, Seed{1}};
}
