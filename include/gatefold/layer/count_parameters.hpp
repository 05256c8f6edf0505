#pragma once

#include "gatefold/backend/shapes.hpp"
#include "gatefold/core/types.hpp"
#include "gatefold/layer/layer.hpp"
#include "gatefold/layer/no_residual.hpp"
#include "gatefold/policy/policy.hpp"
#include "gatefold/tensor/pack.hpp"

namespace gatefold {

/// The number of values in the parameters of a layer (or of a branch or an expert that stands for one), none of which
/// is stored: a model of any size is counted.
///
///     count = Σ over its tensors of the product of their extents                                         (1)
///
/// @throws ArgumentError on options that do not fit, as init does
/// @cost   a visit of its tensors
template <class L>
Index count_parameters(const L& layer) {
  Shapes::Context ctx;
  const auto model = as_layer<float, Shapes>(layer);
  return count_values(init_params<float, Shapes>(model, ctx, Seed{}));
}

}  // namespace gatefold
