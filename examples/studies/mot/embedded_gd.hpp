#pragma once

#include <gatefold/gatefold.hpp>
#include <utility>

namespace studies::mot {

/// Gradient descent for the weights Θ of a router that reads the tokens E X_l, with a fixed matrix E. The stored
/// parameters are Θ' = Eᵀ Θ, because Θ' applied to X_l gives the same scores. A gradient step of Θ with the rate η
/// changes Θ' by
///
///     Θ' ← Θ' − η EᵀE ∇Θ'                                                                               (1)
struct EmbeddedGd {
  using IsOptimizer = void;
  gatefold::optim::Sgd optimizer{};
  gatefold::View<const float, 2, gatefold::Cpu> square{};  // EᵀE [d, d]; empty: E = 1

  template <class Pack>
  using State = gatefold::optim::Sgd::State<Pack>;
  void validate() const { optimizer.validate(); }
  template <class C, class Pack>
  State<Pack> begin(C& ctx, const Pack& params) const {
    return optimizer.begin(ctx, params);
  }
  template <class Pack>
  void expect_step(const Pack& params, const Pack& grads, const State<Pack>& state) const {
    optimizer.expect_step(params, grads, state);
  }
  template <class C, class Pack>
  void step(C& ctx, Pack& params, Pack& grads, State<Pack>& state) const {
    if (square.size() > 0)
      gatefold::for_each_tensor(
          [&]<class Tensor>(const gatefold::Name&, Tensor& g) {
            if constexpr (Tensor::rank == 2) {
              if (g.size() == 0) return;
              auto mark = ctx.mark();
              const auto product = ctx.template scratch<float>(g.extent(0), g.extent(1));
              C::Backend::gemm(ctx, square, false, std::as_const(g).view(), false, false, product,
                               gatefold::functor::Store{});
              gatefold::copy(ctx, product, g.view());
            }
          },
          grads);
    optimizer.step(ctx, params, grads, state);
  }
};

/// Returns EᵀE for a matrix E whose elements are drawn from N(0, 1/d).
inline gatefold::Tensor<float, 2, gatefold::Cpu> square_of_embedding(gatefold::Cpu::Context& ctx, gatefold::Seed seed,
                                                                     gatefold::Index dim) {
  const auto e = gatefold::initial_weights<float>(ctx, {.law = gatefold::Initial::Law::normal_fan_in}, seed, dim, dim);
  gatefold::Tensor<float, 2, gatefold::Cpu> square(dim, dim);
  gatefold::Cpu::gemm(ctx, e.view(), true, e.view(), false, false, square.view(), gatefold::functor::Store{});
  return square;
}

}  // namespace studies::mot
