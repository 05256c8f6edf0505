#pragma once

#include "gatefold/backend/groups.hpp"

namespace gatefold {

namespace functor {

/// Writes the offsets of groups of equal size: offsets[e] = e · size.
template <class B>
struct EvenOffsets {
  Index size;
  View<Index, 1, B> offsets;
  GATEFOLD_HD void operator()(Index e) const { offsets(e) = e * size; }
};

}  // namespace functor

/// Returns Groups (the rows of each expert) with a single expert that has all rows. The result refers to scratch memory
/// of the context, so take a mark (`ctx.mark()`, the scope of such memory) before the call.
template <class C>
auto one_group(C& ctx, Index rows) {
  using B = typename C::Backend;
  auto offsets = ctx.template scratch<Index>(2);
  B::for_each(ctx, 2, functor::EvenOffsets<B>{rows, offsets});
  return Groups<B>{offsets, {}, rows};
}

}  // namespace gatefold
