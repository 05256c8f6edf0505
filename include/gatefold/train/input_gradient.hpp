#pragma once

#include "gatefold/layer/layer.hpp"
#include "gatefold/layer/no_residual.hpp"
#include "gatefold/layer/rounded_weights.hpp"
#include "gatefold/loss/loss.hpp"
#include "gatefold/train/not_trained.hpp"

namespace gatefold {

/// Computes the gradient of a loss with respect to the items, for example for adversarial examples. This class owns the
/// memory for the computation.
///
///     dx = ∇_x loss(model(x), target)                                                                   (1)
///
///     InputGradient gradient{ctx, model, CrossEntropy{}};
///     gradient(trainer.params, x, target, dx);
///
/// Auxiliary losses of gates do not contribute.
/// @param params  the parameters of the model, or ModelAndLoss if the loss has parameters; they are not changed
/// @throws ArgumentError if x, the target or dx does not have the shape that the model and the loss require
/// @cost   forward and backward without the gradients of parameters. A policy that does not declare
///         `gradient_is_optional` still computes the gradients of its parameters, which need memory. After a first
///         call, further calls with the same number of items do not allocate. If products of experts round their
///         factors (CudaBf16), further calls also need the same parameters to avoid allocations
template <class T, class C, class ModelT, class LossT>
class InputGradient {
  using B = typename C::Backend;
  using Layer = AsLayer<ModelT, T, B>;
  using Loss = detail_::loss::Of<LossT, gatefold::Params<Layer, T, B>, T, B>;
  GATEFOLD_REQUIRE((!detail_::policy::reads_ids<Layer, T, B>),
                   "gatefold: a model that reads ids has no gradient with respect to its items; see "
                   "docs/how-to/extending.md#branch");

 public:
  using Params = typename Loss::Learned;
  using Target = typename Loss::Target;
  using Extra = gatefold::Extra<Layer, T, B>;

  InputGradient(C& ctx, const ModelT& model, const LossT& of_outputs, Element<T> = {})
      : loss(of_outputs), ctx_(ctx), layer_(as_layer<T, B>(model)) {}

  /// Computes the gradient (1) with respect to the items x, and writes it to dx.
  void operator()(const Params& params, In<T, 2, B> x, Target target, Out<T, 2, B> dx, const Extra& extra = {}) {
    const auto here = ctx_.here();
    expect_items("InputGradient", layer_, x);
    expect_shape("InputGradient", "dx", dx, {x.extent(0), layer_.in_dim()});
    y_.resize(x.extent(0), layer_.out_dim());
    dy_.resize(x.extent(0), layer_.out_dim());
    value_.resize(1);
    detail_::loss::validate_target<T, B>("InputGradient", loss, x.extent(0), y_, target);
    if (!begun_) grads_ = detail_::not_trained::no_gradients(ctx_, params);
    begun_ = true;
    rounded_.run(ctx_, params, {.keep = keeps_rounded}, [&] { run(params, x, target, dx, without_auxiliary(extra)); });
  }

  LossT loss;
  bool keeps_rounded = true;  // if true, rounded copies of weights are kept (see Trainer::keeps_rounded)

 private:
  void run(const Params& params, View<const T, 2, B> x, const Target& target, View<T, 2, B> dx, const Extra& of_loss) {
    layer_.begin(ctx_, Loss::model(params), x.extent(0), carry_);
    layer_.forward(ctx_, Loss::model(params), x, carry_, y_, saved_, of_loss);
    Loss::forward(loss, ctx_, params, y_, target, value_, loss_saved_);
    set_zero_later(ctx_, grads_);
    Loss::backward(loss, ctx_, params, y_, target, loss_saved_, dy_, grads_);
    set_zero(ctx_, carry_);
    fill(ctx_, dx, 0);
    gatefold::backward(layer_, ctx_, Loss::model(params), x, saved_, dy_, carry_, dx, Loss::model(grads_), of_loss);
    write_zeros(grads_);
  }

  C& ctx_;
  Layer layer_;
  bool begun_ = false;
  Params grads_{};
  gatefold::Saved<Layer, T, B> saved_;
  gatefold::Carry<Layer, T, B> carry_;
  gatefold::Saved<LossT, T, B> loss_saved_;
  Tensor<T, 2, B> y_, dy_;     // [N, out_dim]
  Tensor<T, 1, B> value_;      // [1]
  RoundedWeights<B> rounded_;  // rounded copies of the weights of the current call
};
template <class C, class M, class L>
InputGradient(C&, M, L) -> InputGradient<float, C, M, L>;
template <class C, class M, class L, class T>
InputGradient(C&, M, L, Element<T>) -> InputGradient<T, C, M, L>;

}  // namespace gatefold
