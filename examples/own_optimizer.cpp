// Implements your own optimizer (Lion): each parameter changes by a constant step, with the sign of a moving mean of
// its gradients.
#include <cstdio>
#include <gatefold/check.hpp>
#include <gatefold/gatefold.hpp>
using namespace gatefold;

// clang-format off
// [snippet own-optimizer]
struct Lion {  // p ← p − η (sign(β₁ m + (1 − β₁) g) + λ p),   m ← β₂ m + (1 − β₂) g   (Chen et al. 2023)
  using IsOptimizer = void;
  double lr = 1e-4, beta1 = 0.9, beta2 = 0.99, decay = 0;
  template <class Pack> struct State {
    Pack m;  // a tensor for each of the parameters
    Index step = 0;
    GATEFOLD_PACK(m)  // the state in a checkpoint
  };
  template <class T> struct Step {
    T lr, beta1, beta2, decay;
    const T* g;
    T *p, *m;
    GATEFOLD_HD void operator()(Index i) const {
      const T c = beta1 * m[i] + (1 - beta1) * g[i];
      p[i] -= lr * (T(c > 0) - T(c < 0) + decay * p[i]);
      m[i] = beta2 * m[i] + (1 - beta2) * g[i];
    }
  };
  void validate() const {
    expect(0 <= beta1 && beta1 < 1, "Lion", "beta1", "0 <= beta1 < 1", beta1);
    expect(0 <= beta2 && beta2 < 1, "Lion", "beta2", "0 <= beta2 < 1", beta2);
  }
  template <class Pack> State<Pack> begin(auto& ctx, const Pack& params) const { return {zeros_like(ctx, params)}; }
  template <class Pack> void expect_step(const Pack& params, const Pack& grads, const State<Pack>& state) const {
    expect_like("Lion.step", "grads", params, grads);
    expect_like("Lion.step", "state.m", params, state.m);
  }
  template <class C, class Pack> void step(C& ctx, Pack& params, Pack& grads, State<Pack>& state) const {
    expect_step(params, grads, state);
    ++state.step;
    for_each_learned([&](const Name&, auto& p, auto& g, auto& m) {  // skips tensors that are not learned
      using T = std::remove_cvref_t<decltype(*p.data())>;
      C::Backend::for_each(ctx, p.size(),
                           Step<T>{T(lr), T(beta1), T(beta2), T(decay), std::as_const(g).data(), p.data(), m.data()});
    }, params, grads, state.m);
  }
};
// [/snippet]
// clang-format on

int main() {
  const Mixture model{SoftmaxTopK{.scores = {.experts = 4}, .selection = {.k = 2}}, Mlp<Gelu>{3, 5}};
  const auto faults = check::optimizer_steps<Cpu>(Lion{.decay = 0.1}, model);
  for (const auto& fault : faults) std::printf("%s\n", fault.c_str());

  Cpu::Context ctx(1);
  const auto x = uniform_tensor<float>(ctx, Seed{1}, 1.0, 32, 3),
             target = uniform_tensor<float>(ctx, Seed{2}, 1.0, 32, 3);
  // The library's wrappers, for example Clipped and Scheduled, also work with Lion.
  const optim::Scheduled optimizer{optim::Clipped{Lion{.lr = 1e-2}, 1.0}, optim::Warmup{10}};
  Trainer trainer{ctx, model, MeanSquaredError{}, optimizer, Seed{1}};
  double first = 0, last = 0;
  for (int step = 0; step < 100; ++step) (step ? last : first) = trainer.step(x, target);
  std::printf("loss %.3f before, %.3f after 100 steps\n", first, last);
  return faults.empty() && last < first ? 0 : 1;
}
