#pragma once

#include <doctest/doctest.h>

#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "descriptors/composition.hpp"
#include "descriptors/extras.hpp"
#include "support/pass.hpp"

/// What backward says to a `saved` that is not that of its forward.
namespace gatefold::rows {

/// Give what layers and mixtures keep of their x the right extents, so that backward goes on to what their parts kept.
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

/// Saved of nobody, of fewer or more items, or of wider or narrower ones is refused before anything is written. That of
/// the same composition with other experts, slots or heads is refused, or gives the right gradients.
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
  const auto backward = [&] {  // whether it took what was saved
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

  // A `saved` that is taken gives the right gradients, but where what differs left no extent behind: `seen` is false.
  const auto check = [&](auto& saved, bool refused, bool seen = true) {
    std::swap(run.saved, saved);
    const bool taken = backward();
    std::swap(run.saved, saved);
    if (refused) CHECK_FALSE(taken);
    if (!refused && taken && seen) CHECK(support::same_bits(after, right));
    return support::same_bits(after, before);
  };
  const bool adds_first = std::is_same_v<std::remove_cvref_t<decltype(c.layer)>, RowOf_skip>;  // dy to dx
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
  // Only numbers tell: a Recompute keeps nothing of its layer, and no extent is the width that cosines are taken in.
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
