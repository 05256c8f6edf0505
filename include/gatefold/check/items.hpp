#pragma once

#include <type_traits>

#include "gatefold/backend/random_fill.hpp"
#include "gatefold/core/philox.hpp"
#include "gatefold/layer/layer.hpp"

/// Makes random inputs for the checks of a layer: rows of values, or whole numbers (ids) if the layer is an embedding.
namespace gatefold::check {

/// Returns random inputs for a layer: rows with values uniform in [−scale, scale), or uniform ids if the layer reads
/// ids.
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

/// Returns a zero gradient for the inputs of a layer: a tensor, or Nothing if the layer reads ids, which have no
/// gradient.
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
