#pragma once

#include <doctest/doctest.h>

#include "descriptors/composition.hpp"
#include "descriptors/rounded.hpp"
#include "gatefold/gatefold.cuh"
#include "support/parity.hpp"

/// A composition on the device and by the naive backend. The compositions are made from the rows: see cover.sh.
namespace gatefold::rows {

/// Two layers, where there is a stream, so that what travels in depth matters.
template <class LayerT>
auto deep(const LayerT& layer) {
  return layer;
}
template <class RuleT, class BranchT>
auto deep(const Residual<RuleT, BranchT>& layer) {
  return Stack{layer, 2};
}

/// Outputs, carry, routing, all that is kept, and every gradient. That none of them is zero is seen on the CPU, where
/// they are compared with finite differences. If all experts begin alike (Facts::moved), the weights of a gate that
/// renormalises have no effect, so that the gradients of its scores are 0 up to rounding.
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

/// Where experts multiply bfloat16: values, beside those in double that are rounded where floats are, and the same bits
/// in `infer` and in a second run.
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
