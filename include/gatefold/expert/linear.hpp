#pragma once

#include "gatefold/backend/epilogue.hpp"
#include "gatefold/backend/initial_values.hpp"
#include "gatefold/expert/expert.hpp"
#include "gatefold/expert/output_adjoint.hpp"
#include "gatefold/tensor/expect_shape.hpp"

namespace gatefold {

GATEFOLD_FUNCTORS((class T, class B), WeightedItems);

/// A linear map with separate weights W_e and biases b_e for each expert e. Slot s is one row of work: expert e
/// computes z[s] from the item x[row(s)]. With one expert, this is an ordinary linear layer.
///
///     z[s] = x[row(s)] W_e + b_e                                                                        (1)
///
/// Source: torch.nn.Linear, with separate weights for each expert.
/// @param x [N, D] in items, z [S, output_dim] out; output_dim = 0 means model_dim
/// @param initial  initial values of weights and biases
/// @throws ArgumentError unless model_dim >= 1
/// @cost   2·S·D·O flop, with O the output width
struct Linear {
  Index model_dim = 0, output_dim = 0;
  bool bias = true;
  Initial initial{};

  template <class T, class B>
  struct Params {
    static constexpr bool gradient_is_optional = true, only_multiplied = true;
    Tensor<T, 3, B> weight;  // [E, D, O]
    Tensor<T, 2, B> bias;    // [E, O], [E, 0] without bias
    GATEFOLD_PACK(weight, bias)
  };

  Index in_dim() const { return model_dim; }
  Index out_dim() const { return output_dim ? output_dim : model_dim; }

  template <class T, class B>
  Params<T, B> init(typename B::Context& ctx, Index experts, Seed seed) const {
    expect(model_dim >= 1, "Linear.init", "model_dim", "at least 1", model_dim);
    return {initial_weights<T>(ctx, initial, seed.fork(0), experts, in_dim(), out_dim()),
            initial_biases<T>(ctx, initial, seed.fork(1), in_dim(), experts, bias ? out_dim() : 0)};
  }
  template <class T, class B>
  void validate(const Params<T, B>& p, Index experts) const {
    expect_shape("Linear", "params.weight", p.weight, {experts, in_dim(), out_dim()});
    expect_shape("Linear", "params.bias", p.bias, {experts, bias ? out_dim() : 0});
  }

  template <class T, class B>
  void forward(typename B::Context& ctx, const Params<T, B>& p, Groups<B> groups, In<T, 2, B> x, Out<T, 2, B> z,
               Nothing<T, B>&) const {
    if (bias) {
      B::grouped_gemm(ctx, groups, x, p.weight.view(), as_stored, z, functor::AddBias<T, B>{p.bias});
    } else {
      B::grouped_gemm(ctx, groups, x, p.weight.view(), as_stored, z, functor::Store{});
    }
  }
  template <class T, class B>
  void backward(typename B::Context& ctx, const Params<T, B>& p, Groups<B> groups, In<T, 2, B> x, const Nothing<T, B>&,
                In<T, 2, B> dz, Out<T, 2, B> dslots, Params<T, B>& grads) const {
    const Groups<B> slots = groups.in_slot_order();
    add_weight_gradient<B>(ctx, groups, x, dz, grads.weight);
    if (bias && !grads.bias.is_skipped()) B::grouped_sum(ctx, slots, dz, grads.bias.view());
    B::grouped_gemm(ctx, slots, dz, p.weight.view(), as_transposed, dslots, functor::Store{});
  }
  template <class T, class B>
  void weighted_backward(typename B::Context& ctx, const Params<T, B>& p, Groups<B> groups, In<T, 2, B> x,
                         const Nothing<T, B>&, In<T, 2, B> du, const SlotWeights<T, B>& weights, Out<T, 2, B> dslots,
                         Params<T, B>& grads) const {
    auto mark = ctx.mark();
    auto weight = ctx.template scratch<T>(bias ? groups.slots : 0);
    const OutputAdjoint<T, B> outputs{du, groups, weights, p.bias, weight};
    auto weighted = ctx.template scratch<T>(groups.slots, model_dim);
    B::grouped_gemm_rows(ctx, groups, du, p.weight.view(), as_transposed, dslots,
                         functor::WeightedItems<T, B>{outputs, x, weighted});
    add_weight_gradient<B>(ctx, groups.in_slot_order(), View<const T, 2, B>(weighted), du, grads.weight, groups.rows);
    if (bias && !grads.bias.is_skipped()) outputs.add_bias_gradient(ctx, grads.bias.view());
  }
};

namespace functor {

/// Backward pass of Linear for slot s, which has the weight w and the item h = x[row(s)]. Writes weighted = w h.
/// Replaces r, the product of the output gradient and the transposed weights, by dslots = w r (output_adjoint.hpp).
template <class T, class B>
struct WeightedItems {
  OutputAdjoint<T, B> outputs;
  View<const T, 2, B> x;   // [N, D]
  View<T, 2, B> weighted;  // [S, D]

  GATEFOLD_HD void operator()(const auto& lanes, Index s, T* of_dslots) const {
    outputs.run(lanes, s, [&](T w) {
      const Index columns = x.extent(1);
      const T* const item = x.data() + outputs.groups.row(s) * columns;
      T* const of_weighted = weighted.data() + s * columns;
      return sum_columns<T>(lanes, columns, [&](const auto& at, Index j) {
        const auto v = at.load(item + j), r = at.load(of_dslots + j);
        at.store(of_weighted + j, w * v);
        at.store(of_dslots + j, w * r);
        return r * v;
      });
    });
  }
};

}  // namespace functor

}  // namespace gatefold
