#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "gatefold/check/gradient.hpp"
#include "gatefold/loss/loss.hpp"
#include "gatefold/loss/model_and_loss.hpp"

/// Compares the gradients of a loss policy with finite differences.
namespace gatefold::check {

/// Checks the gradients of a loss policy in double: the gradient dy of the outputs, and the gradients of the loss's own
/// parameters, if it has any. A loss that uses parameters of a model gets an empty model.
///
/// @param ctx  a context of a host backend
/// @param y  [N, out_dim] outputs at which the loss is differentiable; unchanged when it returns
/// @param target  the target of the loss, for outputs in double
/// @throws ArgumentError if the loss refuses y or the target
template <class C, class LossT>
GradientReport loss_gradients(C& ctx, const LossT& of_outputs, Tensor<double, 2, typename C::Backend>& y,
                              const detail_::loss::TargetOf<LossT, double, typename C::Backend>& target,
                              const GradientOptions& options = {}) {
  using B = typename C::Backend;
  using Model = Nothing<double, B>;
  using Call = detail_::loss::Of<LossT, Model, double, B>;
  GATEFOLD_REQUIRE(B::is_host,
                   "gatefold: check::loss_gradients needs a context of a host backend, for example Cpu::Context");
  of_outputs.template validate<double, B>(y, target);
  auto params = Call::init(of_outputs, ctx, options.seed, Model{});
  auto grads = zeros_like(ctx, params);
  Tensor<double, 2, B> dy(y.extent(0), y.extent(1));
  // Fills dy with NaN, so that the check fails if backward does not write all values.
  fill(ctx, dy.view(), std::numeric_limits<double>::quiet_NaN());
  Tensor<double, 1, B> value(1);
  Saved<LossT, double, B> saved;
  const auto evaluate = [&] {
    Call::forward(of_outputs, ctx, params, y, target, value, saved);
    return value(0);
  };
  evaluate();
  Call::backward(of_outputs, ctx, params, y, target, saved, dy, grads);

  std::vector<GradientSlot> slots{{"y", y.data(), std::as_const(dy).data(), y.size()}};
  const auto learned = steps::learned_values_of(params), adjoints = steps::learned_values_of(grads);
  for (std::size_t i = 0; i < learned.size(); ++i)
    slots.push_back({learned[i].name, learned[i].data(), adjoints[i].data(), learned[i].size()});
  return compare_gradients(
      slots, evaluate, [] { return std::uint64_t(0); }, options);
}

}  // namespace gatefold::check
