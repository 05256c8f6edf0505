// Implements an update rule with a state that passes from layer to layer: a moving mean of the mixtures' outputs.
#include <cstdio>
#include <gatefold/check.hpp>
#include <gatefold/gatefold.hpp>
using namespace gatefold;

// clang-format off
// [snippet own-carry]
struct MovingMean {  // s ← β s + (1 − β) u(x),   y = x + s,   s = 0 before the first layer
  double beta = 0.5;
  template <class T, class B> struct Carry {
    Tensor<T, 2, B> mean;  // [N, D] s
    update::Pass pass{};   // reports a second pass without begin
    GATEFOLD_PACK(mean)
  };
  template <class T> struct Step {  // on entry, y holds u
    T beta;
    const T* x;
    T *s, *y;
    GATEFOLD_HD void operator()(Index i) const {
      s[i] = beta * s[i] + (1 - beta) * y[i];
      y[i] = x[i] + s[i];
    }
  };
  template <class T> struct StepBackward {  // ds in: gradient of s after the layer; ds out: gradient of s before it
    T beta;
    const T* dy;
    T *ds, *du;
    GATEFOLD_HD void operator()(Index i) const {
      const T total = ds[i] + dy[i];  // s goes to the next layer and into y
      du[i] = (1 - beta) * total;
      ds[i] = beta * total;
    }
  };
  template <class T, class B> void begin(auto& ctx, Index items, Index dim, Carry<T, B>& carry) const {
    carry.mean.resize(items, dim);
    zero(ctx, carry.mean);
  }
  template <class T, class B>
  void validate(const Nothing<T, B>&, Index items, Index dim, const Carry<T, B>& carry) const {
    expect_shape("MovingMean", "carry.mean", carry.mean, {items, dim});
  }
  template <class T, class B> void forward(auto& ctx, const Nothing<T, B>&, In<T, 2, B> x, Carry<T, B>& carry,
                                           auto&& f, Out<T, 2, B> y, auto&) const {
    f(x, y, 0);  // y = u(x)
    B::for_each(ctx, x.size(), Step<T>{T(beta), x.data(), carry.mean.data(), y.data()});
  }
  template <class T, class B> void backward(auto& ctx, const Nothing<T, B>&, In<T, 2, B> x, auto&&, auto&& df,
                                            In<T, 2, B> dy, Carry<T, B>& dcarry, Out<T, 2, B> dx, auto&) const {
    auto mark = ctx.mark();
    auto du = ctx.template scratch<T>(x.extent(0), x.extent(1));
    B::for_each(ctx, x.size(), StepBackward<T>{T(beta), dy.data(), dcarry.mean.data(), du.data()});
    add(ctx, dy, dx);  // through x
    df(x, du, dx, 0);  // through the branch
  }
};
// [/snippet]
// clang-format on

int main() {
  const Mixture branch{SoftmaxTopK{.scores = {.experts = 4}, .selection = {.k = 2}}, Mlp<Gelu>{5, 6}};
  const auto report =
      check::conformance<Cpu>(Stack{Residual{MovingMean{}, branch}, 3},
                              {.hooks = {{"layer.rule", {"Carry", "begin", "validate", "Carry.pass"}}}});
  std::printf("MovingMean %s\n%s\n", report ? "conforms" : "DOES NOT CONFORM", report.str().c_str());
  return report ? 0 : 1;
}
