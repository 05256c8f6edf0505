#pragma once

#include <doctest/doctest.h>

#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "descriptors/composition.hpp"
#include "descriptors/extras.hpp"
#include "support/pass.hpp"

/// Checks that backward refuses the `saved` of another forward pass, or gives the right gradients.
namespace gatefold::rows {

/// Sets the recorded extents of x in layers and mixtures to the right ones, so that backward also checks what their
/// parts saved.
template <class S>
void restamp(S& saved, const BatchStamp& as) {
  if constexpr (requires { saved.batch; }) saved.batch = as;
  if constexpr (requires { saved.layers[0]; }) {
    for (auto& layer : saved.layers) restamp(layer, as);
  } else if constexpr (requires { saved.layer; }) {
    restamp(saved.layer, as);
  } else {
    for_each_mixture(saved, [&](const auto& of) {
      if constexpr (requires { of.batch; }) const_cast<BatchStamp&>(of.batch) = as;  // not in the tasks of a MultiGate
    });
  }
}

/// Checks that backward refuses an empty `saved`, and one of fewer, more, wider or narrower items, before it writes
/// anything. The `saved` of the same composition with other experts, slots or heads is refused or gives the right
/// gradients.
template <class C>
void check_saved(const C& c) {
  constexpr Index items = 2 * odd.sequence;
  Cpu::Context ctx(1);
  const auto layer = c.make(odd);
  using Layer = std::remove_const_t<decltype(layer)>;
  const auto forward_of = [&ctx](const Layer& of, const Size& size, Index count, const Extras<float>& extras) {
    support::Pass<float, Layer> p(
        ctx, of, count, Seed{1},
        extras.of<Extra<Layer, float, Cpu>>({.length = size.sequence, .noise = true}, 0, count));
    p.forward();
    return p;
  };
  const Extras<float> extras(2 * items, odd.item());
  auto run = forward_of(layer, odd, items, extras);
  const BatchStamp stamp{.items = items, .width = odd.item()};
  std::vector<double> before, after;
  const auto backward = [&] {  // returns whether it accepted what was saved
    set_zero(ctx, run.grads);
    fill(ctx, run.dx, 0.25f);
    layer.begin(ctx, run.params, items, run.dcarry);
    before = support::values(run.dx, run.grads, run.dcarry);
    const std::string said = support::message_of([&] { run.backward(); });
    after = support::values(run.dx, run.grads, run.dcarry);
    return said == "no ArgumentError";
  };
  CHECK(backward());
  const std::vector<double> right = after;

  // If backward accepts a `saved`, the gradients must be right. The exception is a difference that changed no recorded
  // extent (`seen` is false).
  const auto check = [&](auto& saved, bool refused, bool seen = true) {
    std::swap(run.saved, saved);
    const bool taken = backward();
    std::swap(run.saved, saved);
    if (refused) CHECK_FALSE(taken);
    if (!refused && taken && seen) CHECK(support::same_bits(after, right));
    return support::same_bits(after, before);
  };
  const bool adds_first = std::is_same_v<std::remove_cvref_t<decltype(c.layer)>, RowOf_skip>;  // adds dy to dx first
  const auto check_refused = [&](auto& saved, bool parts) {
    const bool untouched = check(saved, true);
    CHECK((untouched || adds_first));
    restamp(saved, stamp);
    if (parts) check(saved, true);
  };

  decltype(run.saved) nothing{};
  check_refused(nothing, true);
  for (const Index others : {items / 2, 2 * items}) {
    auto other = forward_of(layer, odd, others, extras);
    check_refused(other.saved, true);
  }
  Size wide = odd, narrow = odd;
  wide.width = 18, narrow.tokens = 2;
  for (const Size& size : {wide, narrow}) {
    const Extras<float> of_size(items, size.item());
    auto other = forward_of(c.make(size), size, items, of_size);
    check_refused(other.saved, false);
  }
  // `seen` is false in two cases, in which `saved` can have the same extents although the layers have different sizes:
  // Recompute saves nothing of the layer inside it, and CosineScores saves no tensor whose extent is its option `dim`
  // (here size.hidden).
  constexpr bool seen = !std::is_same_v<std::remove_cvref_t<decltype(c.layer)>, RowOf_recompute>;
  constexpr bool cosine = std::is_same_v<std::remove_cvref_t<decltype(c.scores)>, RowOf_cosine_scores>;
  Size all[] = {odd, odd, odd, odd};
  all[0].hidden = 7, all[1].experts = 3, all[2].slots = 3, all[3].heads = 1;
  for (const Size& size : all) {
    auto other = forward_of(c.make(size), size, items, extras);
    check(other.saved, false, seen && (!cosine || size.hidden == odd.hidden));
  }
}

}  // namespace gatefold::rows
