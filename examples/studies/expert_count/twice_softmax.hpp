#pragma once

#include <gatefold/gatefold.hpp>

namespace studies::expert_count {

using namespace gatefold;

/// A cross-entropy that applies softmax twice: it uses probabilities as logits, like the code of Chen et al. 2022.
///
///     loss = (1/N) Σ_n (log Σ_c exp q[n,c] − q[n, label[n]]),   q = softmax(y)
///
/// For two classes, its minimum is log(1 + 1/e) = 0.3133.
struct TwiceSoftmax {
  template <class T, class B>
  using Target = View<const Index, 1, B>;

  template <class T, class B>
  void validate(In<T, 2, B> y, In<Index, 1, B> target) const {
    CrossEntropy{}.validate<T, B>(y, target);
  }
  template <class T, class B>
  void forward(typename B::Context& ctx, In<T, 2, B> y, In<Index, 1, B> target, Out<T, 1, B> value) const {
    auto mark = ctx.mark();
    CrossEntropy{}.forward<T, B>(ctx, softmax<T, B>(ctx, y), target, value);
  }
  template <class T, class B>
  void backward(typename B::Context& ctx, In<T, 2, B> y, In<Index, 1, B> target, Out<T, 2, B> dy) const {
    auto mark = ctx.mark();
    const auto q = softmax<T, B>(ctx, y);
    auto dq = ctx.template scratch<T>(y.extent(0), y.extent(1));
    CrossEntropy{}.backward<T, B>(ctx, q, target, dq);
    B::for_rows(ctx, y.extent(0), functor::SoftmaxBackward<T, B>{q, dq, dy});
  }

 private:
  template <class T, class B>
  static View<T, 2, B> softmax(auto& ctx, View<const T, 2, B> y) {
    auto q = ctx.template scratch<T>(y.extent(0), y.extent(1));
    B::for_rows(ctx, y.extent(0), functor::Softmax<T, B>{y, q});
    return q;
  }
};

/// Adam that adds weight decay to the gradient, as torch.optim.Adam does.
struct AdamL2 {
  using IsOptimizer = void;
  double lr = 1e-3, l2 = 0;

  template <class Pack>
  using State = optim::AdamW::State<Pack>;
  template <class C, class Pack>
  State<Pack> begin(C& ctx, const Pack& params) const {
    return optim::AdamW{}.begin(ctx, params);
  }
  template <class C, class Pack>
  void step(C& ctx, Pack& params, Pack& grads, State<Pack>& state) const {
    for_each_learned(
        [&](const Name&, auto& p, auto& g) {
          using T = std::remove_cvref_t<decltype(*p.data())>;
          add_scaled(ctx, T(l2), std::as_const(p).view(), g.view());
        },
        params, grads);
    optim::AdamW{.lr = lr}.step(ctx, params, grads, state);
  }
};

}  // namespace studies::expert_count
