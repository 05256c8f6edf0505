#pragma once

#include <type_traits>

#include "gatefold/backend/elementwise.hpp"
#include "gatefold/backend/random_fill.hpp"
#include "gatefold/core/philox.hpp"
#include "gatefold/core/types.hpp"
#include "gatefold/layer/layer.hpp"
#include "gatefold/policy/policy.hpp"
#include "gatefold/tensor/pack.hpp"

/// Makes items to check a layer with: rows of values, or ids if the layer reads ids.
namespace gatefold::check {

/// Returns rows with values from U[−scale, scale), or uniformly distributed ids.
/// @param ctx  a context of a host backend
template <class T, class C, class L>
auto random_items(C& ctx, Seed seed, double scale, const L& layer, Index items) {
  using B = typename C::Backend;
  if constexpr (detail_::policy::reads_ids<L, T, B>) {
    Tensor<Index, 1, B> ids(items);
    const auto count = static_cast<double>(layer.in_dim());
    for (Index n = 0; n < items; ++n)
      ids(n) = static_cast<Index>(uniform<double>(seed, 0, static_cast<std::uint64_t>(n)) * count);
    return ids;
  } else {
    return uniform_tensor<T>(ctx, seed, scale, items, layer.in_dim());
  }
}

/// Returns the gradient of the items, set to zero: a tensor, or Nothing for ids.
template <class T, class C, class L>
auto zero_items_grad(C& ctx, const L& layer, Index items) {
  using B = typename C::Backend;
  if constexpr (detail_::policy::reads_ids<L, T, B>) {
    return Nothing<T, B>{};
  } else {
    Tensor<T, 2, B> dx(items, layer.in_dim());
    set_zero(ctx, dx);
    return dx;
  }
}

}  // namespace gatefold::check
