#pragma once

#include <concepts>

#include "gatefold/backend/elementwise.hpp"
#include "gatefold/core/config.hpp"
#include "gatefold/core/error.hpp"
#include "gatefold/core/types.hpp"
#include "gatefold/policy/policy.hpp"
#include "gatefold/tensor/expect_shape.hpp"

/// The family of losses. A loss is an aggregate with
///
///     template <class T, class B> using Target = …;                      // a view
///     validate<T, B>(y, target) const;
///     forward <T, B>(ctx, y, target, value) const;                       // writes the mean to value [1]
///     backward<T, B>(ctx, y, target, dy) const;                          // writes dy
///
/// Values stay on the backend; copy them with B::to_host.
namespace gatefold::loss {

/// value = (1 / count) Σ_i f(i), summed in a fixed order; 0 for no items.
/// @throws ArgumentError unless value is [1]
template <class T, class B, class F>
void mean(typename B::Context& ctx, Index terms, Index count, const F& f, Out<T, 1, B> value) {
  expect_shape("loss.mean", "value", value, {1});
  fill(ctx, value, 0);
  B::template reduce<T>(ctx, terms, f, value.data());
  B::for_each(ctx, 1, fn::Scale<T>{count > 0 ? 1 / static_cast<T>(count) : T(1), value.data()});
}

/// validate of a loss, for outputs y of x: where x and the target count unlike, either may be the wrong one.
/// @throws ArgumentError unless the target fits
template <class T, class B, class LossT, class Target>
void validate_target(const char* where, const LossT& of_outputs, Index items, In<T, 2, B> y, const Target& target) {
  try {
    of_outputs.template validate<T, B>(y, target);
  } catch (const ArgumentError&) {
    if constexpr (requires {
                    { target.extent(0) } -> std::convertible_to<Index>;
                  })
      expect(target.extent(0) == items, where, "x and target", "as many items each",
             Joined{items, " and ", target.extent(0)});
    throw;
  }
}

}  // namespace gatefold::loss
