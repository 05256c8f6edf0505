// expect: gatefold: forward of this branch lacks its last parameter, the step of the update rule: declare forward\(ctx, params, x, u, saved, extra, const auto& step\) const and end it with run_step\(ctx, u, step\); see docs/how-to/extending\.md#branch
// expect: gatefold: a branch needs forward\(ctx, params, x, u, saved, extra, step\) const, with params as const Params<T, B>&, or as const Nothing<T, B>& if it has no parameters; see docs/how-to/extending\.md#branch
// expect: gatefold: a branch needs backward\(ctx, params, x, saved, du, dx, grads, extra, dextra\) const; see docs/how-to/extending\.md#branch
// expect: gatefold: a branch with Params needs Params<T, B> init<T, B>\(ctx, seed\) const; see docs/how-to/extending\.md#branch
#include <gatefold/gatefold.hpp>

using namespace gatefold;

/// Branches u = x. Copied is complete. Those named Without… lack a function or arguments.
struct Dims {
  Index in_dim() const { return 2; }
  Index out_dim() const { return 2; }
};
struct Backward : Dims {
  template <class T, class B>
  void backward(typename B::Context& ctx, const Nothing<T, B>&, In<T, 2, B>, const Nothing<T, B>&, In<T, 2, B> du,
                Out<T, 2, B> dx, Nothing<T, B>&, const Nothing<T, B>&, Nothing<T, B>&) const {
    add(ctx, du, dx);
  }
};
struct Forward : Dims {
  template <class T, class B>
  void forward(typename B::Context& ctx, const Nothing<T, B>&, In<T, 2, B> x, Out<T, 2, B> u, Nothing<T, B>&,
               const Nothing<T, B>&, const auto& step) const {
    copy(ctx, x, u);
    run_step(ctx, u, step);
  }
};
struct Copied : Backward {
  template <class T, class B>
  void forward(typename B::Context& ctx, const Nothing<T, B>&, In<T, 2, B> x, Out<T, 2, B> u, Nothing<T, B>&,
               const Nothing<T, B>&, const auto& step) const {
    copy(ctx, x, u);
    run_step(ctx, u, step);
  }
};
struct WithoutStep : Backward {
  template <class T, class B>
  void forward(typename B::Context& ctx, const Nothing<T, B>&, In<T, 2, B> x, Out<T, 2, B> u, Nothing<T, B>&,
               const Nothing<T, B>&) const {
    copy(ctx, x, u);
  }
};
struct WithoutExtraAndStep : Backward {
  template <class T, class B>
  void forward(typename B::Context& ctx, const Nothing<T, B>&, In<T, 2, B> x, Out<T, 2, B> u, Nothing<T, B>&) const {
    copy(ctx, x, u);
  }
};
struct WithoutSaved : Backward {
  template <class T, class B>
  void forward(typename B::Context& ctx, const Nothing<T, B>&, In<T, 2, B> x, Out<T, 2, B> u) const {
    copy(ctx, x, u);
  }
};
struct WithoutDextra : Forward {
  template <class T, class B>
  void backward(typename B::Context& ctx, const Nothing<T, B>&, In<T, 2, B>, const Nothing<T, B>&, In<T, 2, B> du,
                Out<T, 2, B> dx, Nothing<T, B>&, const Nothing<T, B>&) const {
    add(ctx, du, dx);
  }
};
struct WithoutInit : Copied {
  template <class T, class B>
  struct Params {
    Tensor<T, 1, B> weight;
    GATEFOLD_PACK(weight)
  };
};

template <class Branch>
void train() {
  Cpu::Context ctx;
  Residual{update::Plain{}, Branch{}}.template init<float, Cpu>(ctx, Seed{1});
  Trainer trainer{ctx, Chain{Branch{}, Residual{update::Plain{}, Branch{}}}, MeanSquaredError{}, optim::Sgd{}, Seed{1}};
  Tensor<float, 2, Cpu> x(3, 2), y(3, 2);
  trainer.step(x, y);
  trainer.infer(x, y);
}

int main() {
#ifndef GATEFOLD_FAIL
  train<Copied>();
#else
  train<WithoutStep>();
  train<WithoutExtraAndStep>();
  train<WithoutSaved>();
  train<WithoutDextra>();
  train<WithoutInit>();
#endif
}
