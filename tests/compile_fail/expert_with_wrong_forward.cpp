// expect: gatefold: an expert needs forward\(ctx, params, groups, x, z, saved\) const; see docs/how-to/extending\.md#expert
#include <gatefold/gatefold.hpp>

using namespace gatefold;

/// z = x
struct Unchanged {
  Index in_dim() const { return 2; }
  Index out_dim() const { return 2; }
  template <class T, class B>
  Nothing<T, B> init(typename B::Context&, Index, Seed) const {
    return {};
  }
#ifndef GATEFOLD_FAIL
  template <class T, class B>
  void forward(typename B::Context&, const Nothing<T, B>&, Groups<B>, In<T, 2, B>, Out<T, 2, B>, Nothing<T, B>&) const {
  }
#else
  template <class T, class B>  // the arguments of a branch: no groups
  void forward(typename B::Context&, const Nothing<T, B>&, In<T, 2, B>, Out<T, 2, B>, Nothing<T, B>&) const {}
#endif
  template <class T, class B>
  void backward(typename B::Context&, const Nothing<T, B>&, Groups<B>, In<T, 2, B>, const Nothing<T, B>&, In<T, 2, B>,
                Out<T, 2, B>, Nothing<T, B>&) const {}
};

int main() {
  Cpu::Context ctx;
  Trainer trainer{ctx, Mixture{SoftmaxTopK{.scores = {.experts = 2}}, Unchanged{}}, MeanSquaredError{}, optim::Sgd{},
                  Seed{1}};
}
