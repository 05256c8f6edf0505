#pragma once

#include <doctest/doctest.h>

#include "descriptors/composition.hpp"
#include "descriptors/rounded.hpp"
#include "gatefold/gatefold.cuh"
#include "support/parity.hpp"

/// Compares a composition on the device with the naive backend. cover.sh makes the compositions from the rows.
namespace gatefold::rows {

/// Returns two layers one after the other if the layer is a Residual, so that the carry between them matters. Otherwise
/// returns the layer.
template <class LayerT>
auto deep(const LayerT& layer) {
  return layer;
}
template <class RuleT, class BranchT>
auto deep(const Residual<RuleT, BranchT>& layer) {
  return Stack{layer, 2};
}

/// Compares outputs, carry, routing, everything that is saved, and every gradient. The CPU tests compare gradients with
/// finite differences, which shows that none of them is zero. If all experts begin alike (Facts::moved), the weights of
/// a renormalising gate have no effect, so the gradients of its scores are 0 up to rounding.
template <class C>
void check_parity(const C& c) {
  constexpr Size size{.width = 6, .tokens = 2, .hidden = 7, .heads = 2, .experts = 5, .sequence = 7};
  test::Backends on;
  test::expect_same_layer<double>(on, deep(c.make(size)),
                                  {.items = 3 * size.sequence,
                                   .length = size.sequence,
                                   .expected = {.of_doubles = c.most(&Facts::of_doubles),
                                                .any_zeros = true,
                                                .rounding = c.most(&Facts::moved) > 0 ? 1e-13 : 0}});
}

/// Checks experts that multiply bfloat16. Compares their values with a run in double that rounds the same values, and
/// requires the same bits in `infer` and in a second run.
template <class C>
void check_bfloat16(const C& c) {
  with_rounded<test::RoundedSlots>(c, [](const auto& rounded) {
    CudaBf16::Context ctx;
    const auto run = rounded.template run<float, CudaBf16>(ctx);
    const auto outcome = test::outcome(run);
    rounded.expect(outcome);
    CHECK(test::same(outcome, test::outcome(rounded.template run<float, CudaBf16>(ctx))));
    CHECK(test::values_of(ctx, run.y) == test::values_of(ctx, run.inferred));
    CHECK(test::values_of(ctx, run.carry) == test::values_of(ctx, run.inferred_carry));
  });
}

template <class C>
void check_on_device(const C& c) {
  check_parity(c);
#ifdef GATEFOLD_SLOW_TESTS
  check_bfloat16(c);
#endif
}

}  // namespace gatefold::rows
