// expect: gatefold: a gate needs backward\(ctx, params, x, plan, saved, dplan, dx, grads, extra, dextra\) const; see docs/how-to/extending\.md#gate
#include <gatefold/gatefold.hpp>

using namespace gatefold;

/// Item n goes to expert n mod 2.
struct Alternating {
  template <class T, class B>
  using Plan = SparsePlan<T, B>;

  Index experts() const { return 2; }
  template <class T, class B>
  void forward(typename B::Context& ctx, const Nothing<T, B>&, In<T, 2, B> x, Plan<T, B>& plan, Nothing<T, B>&,
               const Nothing<T, B>&) const {
    plan.resize(x.extent(0), 2, x.extent(0));
    for (Index n = 0; n < x.extent(0); ++n) {
      plan.item(n) = n;
      plan.expert(n) = n % 2;
      plan.weight(n) = 1;
    }
    plan.build(ctx);
  }
#ifndef GATEFOLD_FAIL
  template <class T, class B>
  void backward(typename B::Context&, const Nothing<T, B>&, In<T, 2, B>, const Plan<T, B>&, const Nothing<T, B>&,
                const typename Plan<T, B>::Grad&, Out<T, 2, B>, Nothing<T, B>&, const Nothing<T, B>&,
                Nothing<T, B>&) const {}
#endif
};

int main() {
  Cpu::Context ctx;
  Trainer trainer{ctx, Mixture{Alternating{}, Linear{.model_dim = 2}}, MeanSquaredError{}, optim::Sgd{}, Seed{1}};
}
