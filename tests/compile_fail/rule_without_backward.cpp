// expect: gatefold: an update rule needs backward\(ctx, params, x, saved, df, dy, dcarry, dx, grads\) const; see docs/how-to/extending\.md#rule
#include <gatefold/gatefold.hpp>

using namespace gatefold;

/// y = u(x)
struct Replace {
  template <class T, class B, class F>
  void forward(typename B::Context&, const Nothing<T, B>&, In<T, 2, B> x, Nothing<T, B>&, F&& f, Out<T, 2, B> y,
               Nothing<T, B>&) const {
    f(x, y, 0);
  }
#ifndef GATEFOLD_FAIL
  template <class T, class B, class F>
  void backward(typename B::Context&, const Nothing<T, B>&, In<T, 2, B> x, const Nothing<T, B>&, F&& df, In<T, 2, B> dy,
                Nothing<T, B>&, Out<T, 2, B> dx, Nothing<T, B>&) const {
    df(x, dy, dx, 0);
  }
#endif
};

int main() {
  Cpu::Context ctx;
  Trainer trainer{ctx, Residual{Replace{}, OneExpert{Linear{.model_dim = 2}}}, MeanSquaredError{}, optim::Sgd{},
                  Seed{1}};
}
