// Implements your own branch: each item reads the previous item of its sequence.
#include <cstdio>
#include <gatefold/check.hpp>
#include <gatefold/gatefold.hpp>
using namespace gatefold;

// clang-format off
// [snippet own-branch]
struct TokenShift {  // u[n,d] = w[d] x[n−1,d], and 0 at the first item of each sequence of `length` items
  Index model_dim = 0, length = 1;
  template <class T, class B> struct Params {
    Tensor<T, 1, B> weight;  // [D]
    GATEFOLD_PACK(weight)
  };
  template <class T, class B> struct Shift {  // to[n] (+)= w ⊙ from[n + by], or 0 if item n + by is in another sequence
    Index length, by;
    bool add;
    View<const T, 1, B> weight;
    View<const T, 2, B> from;
    View<T, 2, B> to;
    GATEFOLD_HD void operator()(Index i) const {
      const Index n = i / to.extent(1), d = i % to.extent(1), place = n % length + by;
      const T value = place >= 0 && place < length ? weight(d) * from(n + by, d) : T(0);
      to(n, d) = add ? to(n, d) + value : value;
    }
  };
  template <class T, class B> struct WeightBackward {  // dw[d] += Σ_n du[n,d] x[n−1,d]
    Index length;
    View<const T, 2, B> x, du;
    View<T, 1, B> dweight;
    GATEFOLD_HD void operator()(Index d) const {
      for (Index n = 0; n < x.extent(0); ++n) if (n % length > 0) dweight(d) += du(n, d) * x(n - 1, d);
    }
  };
  Index in_dim() const { return model_dim; }
  Index out_dim() const { return model_dim; }
  template <class T, class B> Params<T, B> init(auto& ctx, Seed seed) const {
    return {uniform_tensor<T>(ctx, seed, 1.0, model_dim)};
  }
  template <class T, class B> void validate(const Params<T, B>&, Index items, const Nothing<T, B>&) const {
    expect(items % length == 0, "TokenShift", "items", "whole sequences", items);
  }
  template <class T, class B> void forward(auto& ctx, const Params<T, B>& p, In<T, 2, B> x, Out<T, 2, B> u, auto&,
                                           const auto&, const auto& step) const {
    B::for_each(ctx, u.size(), Shift<T, B>{length, -1, false, p.weight, x, u});
    run_step(ctx, u, step);  // the update rule's work on each value of u
  }
  template <class T, class B> void backward(auto& ctx, const Params<T, B>& p, In<T, 2, B> x, auto&&, In<T, 2, B> du,
                                            Out<T, 2, B> dx, Params<T, B>& grads, auto&&...) const {
    B::for_each(ctx, dx.size(), Shift<T, B>{length, 1, true, p.weight, du, dx});
    B::for_each(ctx, model_dim, WeightBackward<T, B>{length, x, du, grads.weight});
  }
};
// [/snippet]
// clang-format on

int main() {
  const auto report = check::conformance<Cpu>(
      Stack{Residual{update::HeavyBall{}, PreNorm{LayerNorm{}, TokenShift{.model_dim = 5, .length = 3}}}, 2},
      {.gradients = {.items = 6}, .hooks = {{"layer.branch.branch", {"Params", "validate"}}}});
  std::printf("TokenShift %s\n%s\n", report ? "conforms" : "DOES NOT CONFORM", report.str().c_str());
  return report ? 0 : 1;
}
