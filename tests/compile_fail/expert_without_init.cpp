// expect: gatefold: an expert needs in_dim\(\), out_dim\(\) and Params<T, B> init<T, B>\(ctx, experts, seed\) const; see docs/how-to/extending\.md#expert
#include <gatefold/gatefold.hpp>

using namespace gatefold;

/// z = w x
struct Scaling {
  template <class T, class B>
  struct Params {
    Tensor<T, 1, B> weight;  // [E]
    GATEFOLD_PACK(weight)
  };

  Index in_dim() const { return 2; }
  Index out_dim() const { return 2; }
#ifndef GATEFOLD_FAIL
  template <class T, class B>
  Params<T, B> init(typename B::Context& ctx, Index experts, Seed) const {
    return {constant_tensor<T>(ctx, 1, experts)};
  }
#endif
  template <class T, class B>
  void forward(typename B::Context&, const Params<T, B>&, Groups<B>, In<T, 2, B>, Out<T, 2, B>, Nothing<T, B>&) const {}
  template <class T, class B>
  void backward(typename B::Context&, const Params<T, B>&, Groups<B>, In<T, 2, B>, const Nothing<T, B>&, In<T, 2, B>,
                Out<T, 2, B>, Params<T, B>&) const {}
};

int main() {
  Cpu::Context ctx;
  const Mixture mixture{SoftmaxTopK{.scores = {.experts = 2}}, Scaling{}};
  mixture.init<float, Cpu>(ctx, Seed{1});
}
