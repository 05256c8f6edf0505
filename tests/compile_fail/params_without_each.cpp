// expect: gatefold: this is neither a tensor nor a pack; a pack \(Params, Carry, State\) must list its tensors with GATEFOLD_PACK\(weight, bias\); see docs/how-to/extending\.md#what-all-policies-share
#include <gatefold/gatefold.hpp>

using namespace gatefold;

/// z = gain x
struct Gain {
  Index model_dim = 0;
  template <class T, class B>
  struct Params {
    Tensor<T, 1, B> gain;  // [E]
#ifndef GATEFOLD_FAIL
    GATEFOLD_PACK(gain)
#endif
  };
  Index in_dim() const { return model_dim; }
  Index out_dim() const { return model_dim; }
  template <class T, class B>
  Params<T, B> init(auto& ctx, Index experts, Seed) const {
    return {constant_tensor<T>(ctx, 1, experts)};
  }
  template <class T, class B>
  void forward(auto&, const Params<T, B>&, const Groups<B>&, In<T, 2, B>, Out<T, 2, B>, auto&) const {}
  template <class T, class B>
  void backward(auto&, const Params<T, B>&, const Groups<B>&, In<T, 2, B>, const auto&, In<T, 2, B>, Out<T, 2, B>,
                Params<T, B>&) const {}
};

int main() {
  Cpu::Context ctx;
  const Mixture mixture{SoftmaxTopK{.scores = {.experts = 3}}, Gain{.model_dim = 2}};
  Trainer trainer{ctx, Stack{Residual{update::HeavyBall{}, mixture}, 2}, MeanSquaredError{}, optim::Sgd{}, Seed{1}};
}
