// expect: gatefold: rows of a mixing must be callable as rows\(z, q\) const, which returns f\(lanes, n\); see docs/reference/optional_members\.md
// expect: gatefold: rows_backward of a mixing must be callable as rows_backward\(q, dq, dz\) const, which returns f\(lanes, n\); see docs/reference/optional_members\.md
// expect: gatefold: noisy of a selection must be callable as noisy\(saved\) const, which returns NoisyRank<const T, B>; see docs/reference/optional_members\.md
// expect: gatefold: rows of a selection must be callable as rows\(candidates, plan, extra\) const, which returns f\(lanes, n\) with choose\(lanes, n\) and weigh\(lanes, n\); see docs/reference/optional_members\.md
// expect: gatefold: rows_backward of a selection must be callable as rows_backward\(candidates, plan, dplan, dq, extra\) const, which returns f\(lanes, n\); see docs/reference/optional_members\.md
// expect: gatefold: slot_weights of a Plan must be callable as slot_weights\(dplan\) const, which returns SlotWeights<T, B>; see docs/reference/optional_members\.md
// expect: gatefold: advance of an update rule must be callable as advance\(carry, u\) const, which returns a functor of elements; see docs/reference/optional_members\.md
// expect: gatefold: advance_backward of an update rule must be callable as advance_backward\(dcarry, du, total\) const, which returns a functor of elements; see docs/reference/optional_members\.md
// Members that take the arguments of their family but return a wrong type.
#include <gatefold/gatefold.hpp>

using namespace gatefold;

struct OddMixing : Independent {
#ifdef GATEFOLD_FAIL
  void rows(auto&&, auto&&) const {}
  auto rows_backward(auto&&, auto&&, auto&&) const {
    return [](Index) {};
  }
#endif
};
struct OddSelection : TopK {
#ifdef GATEFOLD_FAIL
  int noisy(auto&&) const { return 0; }
  auto rows(auto&&, auto&&, auto&&) const {
    return [](auto&&, Index) {};
  }
  void rows_backward(auto&&, auto&&, auto&&, auto&&, auto&&) const {}
#endif
};
struct OddRule : update::HeavyBall {
#ifdef GATEFOLD_FAIL
  void advance(auto&&, auto&&) const {}
  bool advance_backward(auto&&, auto&&, auto&&) const { return true; }
#endif
};
template <class T, class B>
struct OddPlan : SparsePlan<T, B> {
#ifdef GATEFOLD_FAIL
  View<const T, 1, B> slot_weights(auto&&) const { return this->weight; }
#endif
};
struct OddGate : SoftmaxTopK {
  template <class T, class B>
  using Plan = OddPlan<T, B>;
};

int main() {
  Cpu::Context ctx;
  ComposedGate<LinearScores, OddMixing, OddSelection>{}.init<float, Cpu>(ctx, Seed{1});
  Mixture{OddGate{}, Linear{.model_dim = 2}}.init<float, Cpu>(ctx, Seed{1});
  Residual{OddRule{}, OneExpert{Linear{.model_dim = 2}}}.init<float, Cpu>(ctx, Seed{1});
}
