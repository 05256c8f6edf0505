// expect: gatefold: validate of an expert must be callable as validate\(params, experts\) const; see docs/reference/optional_members\.md
// expect: gatefold: infer of an expert must be callable as infer\(ctx, params, groups, x, z\) const; see docs/reference/optional_members\.md
// expect: gatefold: weighted_backward of an expert must be callable as weighted_backward\(ctx, params, groups, x, saved, du, weights, dslots, grads\) const; see docs/reference/optional_members\.md
// expect: gatefold: stores_slots of an expert must be static constexpr bool; see docs/reference/optional_members\.md
// expect: gatefold: experts of a policy must be callable as experts\(\) const; see docs/reference/optional_members\.md
// expect: gatefold: items_adjoint_is_optional of a policy must be static constexpr bool; see docs/reference/optional_members\.md
// Members with the right names: functions that cannot be called with the arguments of their family, and flags that are
// not static constexpr.
#include <gatefold/gatefold.hpp>

using namespace gatefold;

struct Odd : Linear {
#ifdef GATEFOLD_FAIL
  bool items_adjoint_is_optional = true, stores_slots = true;
  void validate() const {}
  void infer(Index) const {}
  void weighted_backward(Index) const {}
  Index experts(Index) const { return 1; }
#endif
};

int main() {
  Cpu::Context ctx;
  Trainer trainer{ctx, Mixture{SoftmaxTopK{.scores = {.experts = 2}}, Odd{{.model_dim = 2}}}, MeanSquaredError{}, optim::Sgd{},
                  Seed{1}};
}
