#pragma once

#include "gatefold/backend/groups.hpp"
#include "gatefold/core/config.hpp"
#include "gatefold/core/types.hpp"

namespace gatefold {

namespace functor {

/// offsets[e] = e · size.
template <class B>
struct EvenOffsets {
  Index size;
  View<Index, 1, B> offsets;
  GATEFOLD_HD void operator()(Index e) const { offsets(e) = e * size; }
};

}  // namespace functor

/// Returns groups with one expert that has all rows as slots. The offsets are in scratch, so take a mark before the
/// call.
template <class C>
auto one_group(C& ctx, Index rows) {
  using B = typename C::Backend;
  auto offsets = ctx.template scratch<Index>(2);
  B::for_each(ctx, 2, functor::EvenOffsets<B>{rows, offsets});
  return Groups<B>{offsets, {}, rows};
}

}  // namespace gatefold
