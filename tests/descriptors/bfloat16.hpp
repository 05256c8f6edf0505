#pragma once

#include <utility>

#include "descriptors/pairwise.hpp"
#include "descriptors/rounded.hpp"

namespace gatefold::rows {

/// Checks a composition on CpuBf16. Compares its values with a run in double that rounds the same values, and its bits
/// between runs, also with frozen parameters. cover.sh makes the compositions from the rows.
template <class C>
void check_bfloat16(const C& c) {
  with_rounded<test::RoundedDouble>(c, [](const auto& rounded) {
    CpuBf16::Context ctx(2, true);
    auto run = rounded.template run<float, CpuBf16>(ctx);
    rounded.expect(test::outcome(run));
    const auto frozen = freeze(ctx, std::move(run.params));
    run.layer.begin(ctx, model_params(frozen), run.x.extent(0), run.inferred_carry);
    infer(run.layer, ctx, frozen, run.x, run.inferred_carry, run.inferred, run.extra);
    CHECK(test::values_of(ctx, run.inferred) == test::values_of(ctx, run.y));
    CHECK(test::values_of(ctx, run.inferred_carry) == test::values_of(ctx, run.carry));
  });
  check_bits<float, CpuBf16>(c);
  bitwise::without_gradients<float, CpuBf16>(c.make(odd), bitwise::few, {.noise = true, .padding = true});
  bitwise::on_any_threads<float, CpuBf16>(c.make(odd), 300, true);
}

}  // namespace gatefold::rows
