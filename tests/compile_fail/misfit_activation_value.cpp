// expect: gatefold: an activation \(for example Gelu\) needs static V value\(V v\), a template for any V; see docs/how-to/extending\.md#expert
// expect: gatefold: value\(v\) of an activation must also accept a register of values: make it a template for any V, or declare static constexpr bool scalar_only = true; see docs/how-to/extending\.md#expert
#include <gatefold/gatefold.hpp>

using namespace gatefold;

struct Nameless {
#ifdef GATEFOLD_FAIL
  template <class V>
  V operator()(V v) const {
    return v;
  }
#else
  template <class V>
  static V value(V v) {
    return v;
  }
#endif
  template <class V>
  static V slope(V) {
    return V(1);
  }
};
struct OfDoubles {
#ifndef GATEFOLD_FAIL
  static constexpr bool scalar_only = true;
#endif
  static double value(double v) { return v; }
  static double slope(double) { return 1; }
};

template <class Act>
void infer_one() {
  Cpu::Context ctx;
  const OneExpert branch{Mlp<Act>{2, 2}};
  const auto params = branch.template init<double, Cpu>(ctx, Seed{1});
  Tensor<double, 2, Cpu> x(3, 2), u(3, 2);
  infer(branch, ctx, params, x, u);
}

int main() {
  infer_one<Nameless>();
  infer_one<OfDoubles>();
}
