// Implements your own update rule: y = x + γ u, with a learned γ.
#include <cstdio>
#include <gatefold/check.hpp>
#include <gatefold/gatefold.hpp>
using namespace gatefold;

// clang-format off
// [snippet own-rule]
struct Damped {
  double gamma = 0.5;  // initial value
  template <class T, class B> struct Params {
    Tensor<T, 1, B> gamma;  // [1]
    GATEFOLD_PACK(gamma)
  };
  template <class T, class B> struct Saved { Tensor<T, 2, B> u; };
  template <class T> struct Step {  // out = a + γ b; reads γ from the parameters
    const T *gamma, *a, *b;
    T* out;
    GATEFOLD_HD void operator()(Index i) const { out[i] = (a ? a[i] : T(0)) + *gamma * b[i]; }
  };
  template <class T> struct Product {
    const T *a, *b;
    GATEFOLD_HD T operator()(Index i) const { return a[i] * b[i]; }
  };
  template <class T, class B> Params<T, B> init(auto& ctx, Seed) const { return {constant_tensor<T>(ctx, gamma, 1)}; }
  template <class T, class B>
  void forward(auto& ctx, const Params<T, B>& p, In<T, 2, B> x, auto&, auto&& f, Out<T, 2, B> y,
               Saved<T, B>& saved) const {
    saved.u.resize(x.extent(0), x.extent(1));
    f(x, saved.u, 0);  // u = branch(x), evaluation 0; a rule can also evaluate at another point, or again
    B::for_each(ctx, x.size(), Step<T>{p.gamma.data(), x.data(), saved.u.data(), y.data()});
  }
  template <class T, class B>
  void backward(auto& ctx, const Params<T, B>& p, In<T, 2, B> x, const Saved<T, B>& saved, auto&& df, In<T, 2, B> dy,
                auto&, Out<T, 2, B> dx, Params<T, B>& grads) const {
    auto mark = ctx.mark();
    auto du = ctx.template scratch<T>(x.extent(0), x.extent(1));
    B::for_each(ctx, x.size(), Step<T>{p.gamma.data(), nullptr, dy.data(), du.data()});
    B::template reduce<T>(ctx, x.size(), Product<T>{dy.data(), saved.u.data()}, grads.gamma.data());
    add(ctx, dy, dx);  // through x
    df(x, du, dx, 0);  // through the branch: adds to dx and to the gradients of the branch
  }
};
// [/snippet]
// clang-format on

int main() {
  const SoftmaxTopK gate{.scores = {.experts = 4}, .selection = {.k = 2}};
  const auto report = check::conformance<Cpu>(Stack{Residual{Damped{.gamma = 0.5}, Mixture{gate, Mlp<Gelu>{5, 6}}}, 3});
  std::printf("Damped %s\n%s\n", report ? "conforms" : "DOES NOT CONFORM", report.str().c_str());
  return report ? 0 : 1;
}
