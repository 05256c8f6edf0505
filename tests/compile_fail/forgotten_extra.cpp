// expect: gatefold: an extra input that has no default is missing: set it in the extra, the last argument of forward, infer and step; see docs/reference/inputs\.md#inputs-of-its-own
#include <gatefold/gatefold.hpp>

using namespace gatefold;

/// Item n goes to expert n mod 2, weighted by a scale that the caller must give.
struct Scaled {
  template <class T, class B>
  using Plan = SparsePlan<T, B>;
  template <class T, class B>
  struct Extra {
    Required<double> scale;
  };

  Index experts() const { return 2; }
  template <class T, class B>
  void forward(typename B::Context& ctx, const Nothing<T, B>&, In<T, 2, B> x, Plan<T, B>& plan, Nothing<T, B>&,
               const Extra<T, B>& extra) const {
    plan.resize(x.extent(0), 2, x.extent(0));
    for (Index n = 0; n < x.extent(0); ++n) {
      plan.item(n) = n;
      plan.expert(n) = n % 2;
      plan.weight(n) = static_cast<T>(extra.scale.value);
    }
    plan.build(ctx);
  }
  template <class T, class B>
  void backward(typename B::Context&, const Nothing<T, B>&, In<T, 2, B>, const Plan<T, B>&, const Nothing<T, B>&,
                const typename Plan<T, B>::Grad&, Out<T, 2, B>, Nothing<T, B>&, const Extra<T, B>&,
                Nothing<T, B>&) const {}
};

int main() {
  Cpu::Context ctx;
  Trainer trainer{ctx, Mixture{Scaled{}, Linear{.model_dim = 2}}, MeanSquaredError{}, optim::Sgd{}, Seed{1}};
  const Tensor<float, 2, Cpu> x(3, 2), target(3, 2);
  trainer.step(x, target, {2.0});
#ifdef GATEFOLD_FAIL
  trainer.step(x, target);
#endif
}
