// expect: gatefold: validate of a gate must be callable as validate\(params, items, extra\) const; see docs/reference/optional_members\.md
// expect: gatefold: infer of a gate must be callable as infer\(ctx, params, x, plan, extra\) const; see docs/reference/optional_members\.md
// expect: gatefold: with_model_dim of a policy must be callable as with_model_dim\(model_dim\) const, which returns its own type; see docs/reference/optional_members\.md
// expect: gatefold: with_experts of a policy must be callable as with_experts\(experts\) const, which returns its own type; see docs/reference/optional_members\.md
// expect: gatefold: items_adjoint_is_optional of a policy must be static constexpr bool; see docs/reference/optional_members\.md
// Members with the right names: functions with other arguments or another result than those of their family, and a flag
// that is not static constexpr.
#include <gatefold/gatefold.hpp>

using namespace gatefold;

struct Odd : SoftmaxTopK {
#ifdef GATEFOLD_FAIL
  bool items_adjoint_is_optional = true;
  void validate(Index) const {}
  void infer() const {}
  void with_model_dim(Index) const {}
  Odd with_experts() const { return *this; }
#endif
};

int main() {
  Cpu::Context ctx;
  Trainer trainer{ctx, Mixture{Odd{}, Linear{.model_dim = 2}}, MeanSquaredError{}, optim::Sgd{}, Seed{1}};
}
