// expect: gatefold: slot_weights of a Plan must be callable as slot_weights\(dplan\) const, which returns SlotWeights<T, B>; see docs/reference/optional_members\.md
// Members with the right names that cannot be called with the arguments of their family.
#include <gatefold/gatefold.hpp>

using namespace gatefold;

template <class T, class B>
struct OddPlan : SparsePlan<T, B> {
#ifdef GATEFOLD_FAIL
  void slot_weights() const {}
#endif
};
struct Odd : SoftmaxTopK {
  template <class T, class B>
  using Plan = OddPlan<T, B>;
};

int main() {
  Cpu::Context ctx;
  Trainer trainer{ctx, Mixture{Odd{}, Linear{.model_dim = 2}}, MeanSquaredError{}, optim::Sgd{}, Seed{1}};
}
