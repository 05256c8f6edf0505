// expect: gatefold: a loss needs validate<T, B>\(y, target\) const; see docs/how-to/extending\.md#loss
// expect: gatefold: a loss needs forward<T, B>\(ctx, y, target, value\) const, with Params forward<T, B>\(ctx, params, model, y, target, value, saved\) const; see docs/how-to/extending\.md#loss
// expect: gatefold: a loss needs backward<T, B>\(ctx, y, target, dy\) const, with Params backward<T, B>\(ctx, params, model, y, target, saved, dy, grads, dmodel\) const; see docs/how-to/extending\.md#loss
#include <gatefold/gatefold.hpp>

using namespace gatefold;

struct Targets {
  template <class T, class B>
  using Target = View<const T, 2, B>;
};
struct Validated : Targets {
  template <class T, class B>
  void validate(In<T, 2, B>, const Target<T, B>&) const {}
};
struct Forward : Validated {
  template <class T, class B>
  void forward(typename B::Context&, In<T, 2, B>, const Target<T, B>&, Out<T, 1, B>) const {}
};
struct Whole : Forward {
  template <class T, class B>
  void backward(typename B::Context&, In<T, 2, B>, const Target<T, B>&, Out<T, 2, B>) const {}
};
// A loss that learns is called with its parameters.
struct Learning : Validated {
  template <class T, class B>
  struct Params {
    static void each(auto&&, auto&...) {}
  };
  template <class T, class B>
  Params<T, B> init(typename B::Context&, Seed) const { return {}; }
  template <class T, class B, class ModelP>
  void forward(typename B::Context&, const Params<T, B>&, const ModelP&, In<T, 2, B>, const Target<T, B>&, Out<T, 1, B>,
               Nothing<T, B>&) const {}
#ifndef GATEFOLD_FAIL
  template <class T, class B, class ModelP>
  void backward(typename B::Context&, const Params<T, B>&, const ModelP&, In<T, 2, B>, const Target<T, B>&,
                const Nothing<T, B>&, Out<T, 2, B>, Params<T, B>&, ModelP&) const {}
#else
  template <class T, class B>
  void backward(typename B::Context&, In<T, 2, B>, const Target<T, B>&, Out<T, 2, B>) const {}
#endif
};

template <class Loss>
void train() {
  Cpu::Context ctx;
  Trainer trainer{ctx, Linear{.model_dim = 2}, Loss{}, optim::Sgd{}, Seed{1}};
  const Tensor<float, 2, Cpu> x(3, 2), target(3, 2);
  trainer.step(x, target);
}

int main() {
  train<Learning>();
#ifndef GATEFOLD_FAIL
  train<Whole>();
#else
  train<Targets>();
  train<Validated>();
  train<Forward>();
#endif
}
