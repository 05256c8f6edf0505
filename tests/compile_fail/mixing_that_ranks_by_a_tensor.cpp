// expect: gatefold: rank of a mixing must return a view of z or of saved: a local tensor is destroyed when rank returns; see docs/how-to/extending_parts\.md#parts-of-a-gate
#include <gatefold/gatefold.hpp>

using namespace gatefold;

/// Computes what Independent computes, and also has a member rank.
struct Ranking {
  template <class T, class B>
  void forward(auto& ctx, const Nothing<T, B>& p, In<T, 2, B> x, In<T, 2, B> z, Out<T, 2, B> q, Nothing<T, B>& saved,
               const Nothing<T, B>& extra) const {
    Independent{}.forward<T, B>(ctx, p, x, z, q, saved, extra);
  }
#ifndef GATEFOLD_FAIL
  template <class T, class B>
  View<const T, 2, B> rank(View<const T, 2, B> z, const Nothing<T, B>&) const {
    return z;
  }
#else
  template <class T, class B>
  Tensor<T, 2, B> rank(View<const T, 2, B> z, const Nothing<T, B>&) const {
    return Tensor<T, 2, B>(z.extent(0), z.extent(1));
  }
#endif
  template <class T, class B>
  void backward(auto& ctx, const Nothing<T, B>& p, In<T, 2, B> x, In<T, 2, B> z, In<T, 2, B> q,
                const Nothing<T, B>& saved, In<T, 2, B> drank, In<T, 2, B> dq, Out<T, 2, B> dz, Out<T, 2, B> dx,
                Nothing<T, B>& grads, const Nothing<T, B>& extra, Nothing<T, B>& dextra) const {
    Independent{}.backward<T, B>(ctx, p, x, z, q, saved, drank, dq, dz, dx, grads, extra, dextra);
  }
};

int main() {
  Cpu::Context ctx;
  const Mixture layer{ComposedGate<LinearScores, Ranking, TopK>{.scores = {.experts = 3}}, Linear{.model_dim = 2}};
  Trainer trainer{ctx, layer, MeanSquaredError{}, optim::Sgd{}, Seed{1}};
  const auto x = uniform_tensor<float>(ctx, Seed{1}, 1, 4, 2);
  trainer.step(x, x);
}
