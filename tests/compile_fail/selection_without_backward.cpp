// expect: a selection needs backward\(ctx, params, candidates, plan, saved, dplan, d, grads, extra\) const; see docs/how-to/extending_parts.md#parts-of-a-gate
#include <gatefold/gatefold.hpp>

using namespace gatefold;

struct First {
  template <class T, class B>
  void forward(typename B::Context& ctx, const Nothing<T, B>&, const Candidates<T, B>& c, SparsePlan<T, B>& plan,
               Nothing<T, B>&, const Nothing<T, B>&) const {
    plan.resize(c.q.extent(0), c.q.extent(1), 0);
    plan.build(ctx);
  }
#ifndef GATEFOLD_FAIL
  template <class T, class B>
  void backward(typename B::Context&, const Nothing<T, B>&, const Candidates<T, B>&, const SparsePlan<T, B>&,
                const Nothing<T, B>&, const typename SparsePlan<T, B>::Grad&, const CandidatesGrad<T, B>&,
                Nothing<T, B>&, const Nothing<T, B>&) const {}
#endif
};

int main() {
  Cpu::Context ctx;
  const ComposedGate<LinearScores, Independent, First> gate{.scores = {.model_dim = 4, .experts = 2}};
  (void)init_params<float, Cpu>(gate, ctx, Seed{1});
}
