// expect: gatefold: a layer needs begin\(ctx, params, items, carry\) const, with params as const Params<T, B>&, or as const Nothing<T, B>& if it has no parameters; see docs/how-to/extending\.md#branch
// expect: gatefold: a layer needs forward\(ctx, params, x, carry, y, saved, extra\) const, with params as const Params<T, B>&, or as const Nothing<T, B>& if it has no parameters; see docs/how-to/extending\.md#branch
// expect: gatefold: a layer needs backward\(ctx, params, x, saved, dy, dcarry, dx, grads, extra, dextra\) const; see docs/how-to/extending\.md#branch
// expect: gatefold: a layer with Params needs Params<T, B> init<T, B>\(ctx, seed\) const; see docs/how-to/extending\.md#branch
#include <gatefold/gatefold.hpp>

using namespace gatefold;

/// y = x
struct Whole {
  Index in_dim() const { return 2; }
  Index out_dim() const { return 2; }
  template <class T, class B>
  void begin(typename B::Context&, const Nothing<T, B>&, Index, Nothing<T, B>&) const {}
  template <class T, class B>
  void forward(typename B::Context& ctx, const Nothing<T, B>&, In<T, 2, B> x, Nothing<T, B>&, Out<T, 2, B> y,
               Nothing<T, B>&, const Nothing<T, B>&) const {
    copy(ctx, x, y);
  }
  template <class T, class B>
  void backward(typename B::Context& ctx, const Nothing<T, B>&, In<T, 2, B>, const Nothing<T, B>&, In<T, 2, B> dy,
                Nothing<T, B>&, Out<T, 2, B> dx, Nothing<T, B>&, const Nothing<T, B>&, Nothing<T, B>&) const {
    add(ctx, dy, dx);
  }
};
struct BeginsWithoutItems : Whole {
  template <class T, class B>
  void begin(typename B::Context&, const Nothing<T, B>&, Nothing<T, B>&) const {}
};
struct WithoutExtra : Whole {
  template <class T, class B>
  void forward(typename B::Context& ctx, const Nothing<T, B>&, In<T, 2, B> x, Nothing<T, B>&, Out<T, 2, B> y,
               Nothing<T, B>&) const {
    copy(ctx, x, y);
  }
};
struct WithoutDcarry : Whole {
  template <class T, class B>
  void backward(typename B::Context& ctx, const Nothing<T, B>&, In<T, 2, B>, const Nothing<T, B>&, In<T, 2, B> dy,
                Out<T, 2, B> dx, Nothing<T, B>&, const Nothing<T, B>&, Nothing<T, B>&) const {
    add(ctx, dy, dx);
  }
};
struct WithoutInit : Whole {
  template <class T, class B>
  struct Params {
    Tensor<T, 1, B> weight;
    GATEFOLD_PACK(weight)
  };
};

template <class Layer>
void train() {
  Cpu::Context ctx;
  Trainer trainer{ctx, Stack{Layer{}, 2}, MeanSquaredError{}, optim::Sgd{}, Seed{1}};
}

int main() {
#ifndef GATEFOLD_FAIL
  train<Whole>();
#else
  train<BeginsWithoutItems>();
  train<WithoutExtra>();
  train<WithoutDcarry>();
  train<WithoutInit>();
#endif
}
