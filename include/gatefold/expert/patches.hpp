#pragma once

#include <utility>

#include "gatefold/backend/epilogue.hpp"
#include "gatefold/expert/mlp.hpp"
#include "gatefold/expert/positions.hpp"
#include "gatefold/policy/options.hpp"

/// The computations that the experts PatchCnn and PatchMlp share: apply filters to every patch of an item, and sum the
/// activations over the patches.
namespace gatefold {

GATEFOLD_FUNCTORS((class T, class B), SumFilters, JoinPatches);
GATEFOLD_FUNCTORS((class Act, class T, class B), SumFiltersBackward);

/// Checks the sizes that are options of the experts PatchCnn and PatchMlp.
/// @throws ArgumentError unless all sizes are at least 1 and outputs divides filters
inline void expect_patch_options(const char* where, Index model_dim, Index patches, Index filters, Index outputs) {
  expect_sizes(where, {{"model_dim", model_dim}, {"patches", patches}, {"filters", filters}});
  expect(outputs >= 1 && filters % outputs == 0, where, "outputs", Joined{"a divisor of filters = ", filters}, outputs);
}

/// Computes the outputs of all slots. Output o of slot s (one item for one expert) applies filters w_{j,p} to the
/// patches x^(p) of the item: z[s,o] = Σ_{j of o} Σ_p act(⟨w_{j,p}, x^(p)⟩ + b_{j,p}). The first sum is over the
/// filters j that belong to o.
/// @param weight [G, d, J] in, the filters; bias [G, J] in, or [G, 0] without bias. G is E, or E · P if every patch has
///              separate filters
/// @param pre    [S · P, J] out, resized; the values before the activation
template <class Act, class C, class T, class B>
void patches_forward(C& ctx, const Positions<B>& patches, In<T, 2, B> x, In<T, 3, B> weight, In<T, 2, B> bias,
                     Out<T, 2, B> z, Tensor<T, 2, B>& pre) {
  auto mark = ctx.mark();
  const Index filters = weight.extent(2);
  pre.resize(patches.slots(), filters);
  auto hidden = ctx.template scratch<T>(patches.slots(), filters);
  B::grouped_gemm(ctx, position_groups(ctx, patches), x.as(x.extent(0) * patches.length, weight.extent(1)), weight,
                  as_stored, hidden, functor::BiasActivate<Act, T, B>{bias, pre});
  B::for_rows(ctx, patches.items.slots, functor::SumFilters<T, B>{patches, hidden, z});
}

/// Computes the backward pass of patches_forward: writes the gradient dslots of the items, and adds to the gradients
/// dweight and dbias of the filters. A gradient whose array is empty is skipped.
template <class Act, class C, class T, class B>
void patches_backward(C& ctx, const Positions<B>& patches, In<T, 2, B> x, In<T, 3, B> weight,
                      const Tensor<T, 2, B>& pre, In<T, 2, B> dz, Out<T, 2, B> dslots, Out<T, 3, B> dweight,
                      Out<T, 2, B> dbias) {
  auto mark = ctx.mark();
  const Index dim = weight.extent(1);
  const Groups<B> groups = position_groups(ctx, patches), slots = groups.in_slot_order();
  auto dpre_out = ctx.template scratch<T>(patches.slots(), pre.extent(1));
  B::for_rows(ctx, patches.items.slots, functor::SumFiltersBackward<Act, T, B>{patches, pre, dz, dpre_out});
  const View<const T, 2, B> dpre = dpre_out;
  if (dweight.size() > 0) B::grouped_outer(ctx, groups, x.as(x.extent(0) * patches.length, dim), dpre, dweight);
  if (dbias.size() > 0) B::grouped_sum(ctx, slots, dpre, dbias);
  if (dslots.size() == 0) return;
  if (patches.apart) {
    auto dpatch = ctx.template scratch<T>(patches.slots(), dim);
    B::grouped_gemm(ctx, slots, dpre, weight, as_transposed, dpatch, functor::Store{});
    B::for_rows(ctx, patches.slots(), functor::JoinPatches<T, B>{patches, dpatch, dslots});
  } else {
    B::grouped_gemm(ctx, slots, dpre, weight, as_transposed, dslots.as(patches.slots(), dim), functor::Store{});
  }
}

namespace functor {

/// Sums the activations `hidden` over the patches p of slot s and the filters j that belong to output o: z[s,o] = Σ_p
/// Σ_{j of o} hidden[slot(s,p), j].
template <class T, class B>
struct SumFilters {
  Positions<B> patches;
  View<const T, 2, B> hidden;  // [S · P, J]
  View<T, 2, B> z;             // [S, O]

  GATEFOLD_HD void operator()(const auto& lanes, Index s) const {
    if (patches.items.expert(s) < 0) return;
    const Index share = hidden.extent(1) / z.extent(1);
    for (Index o = 0; o < z.extent(1); ++o) {
      T sum = 0;
      patches.each(s, [&](Index t) {
        for (Index j = lanes.lane; j < share; j += lanes.size) sum += hidden(t, o * share + j);
      });
      sum = lanes.sum(sum);
      if (lanes.lane == 0) z(s, o) = sum;
    }
  }
};
/// Computes the gradient of the values before the activation, for patch p and filter j of slot s: dpre[slot(s,p), j] =
/// dz[s, o] · act'(pre[slot(s,p), j]), with o the output of filter j.
template <class Act, class T, class B>
struct SumFiltersBackward {
  static_assert(detail_::policy::check_slope<Act>());
  Positions<B> patches;
  View<const T, 2, B> pre, dz;
  View<T, 2, B> dpre;

  GATEFOLD_HD void operator()(const auto& lanes, Index s) const {
    const Index share = pre.extent(1) / dz.extent(1);
    patches.each(s, [&](Index t) {
      for (Index o = 0; o < dz.extent(1); ++o) {
        const T d = dz(s, o), *from = &pre(t, o * share);
        T* to = &dpre(t, o * share);
        for (Index j = lanes.lane; j < share; j += lanes.size) to[j] = d * Act::slope(from[j]);
      }
    });
  }
};
/// Copies the gradient of each patch p of slot s to its place in the gradient of the item: dslots[s, p] =
/// dpatch[slot(s,p)].
template <class T, class B>
struct JoinPatches {
  Positions<B> patches;
  View<const T, 2, B> dpatch;  // [S · P, d]
  View<T, 2, B> dslots;        // [S, P · d]

  GATEFOLD_HD void operator()(const auto& lanes, Index r) const {
    const Index s = r / patches.length, p = r % patches.length, dim = dpatch.extent(1);
    if (patches.items.expert(s) < 0) return;
    const Index t = patches.slot(s, p);
    for (Index c = lanes.lane; c < dim; c += lanes.size) dslots(s, p * dim + c) = dpatch(t, c);
  }
};

}  // namespace functor

}  // namespace gatefold
