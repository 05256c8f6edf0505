#pragma once

#include <doctest/doctest.h>

#include <string>
#include <type_traits>
#include <vector>

#include "descriptors/composition.hpp"
#include "descriptors/extras.hpp"
#include "support/pass.hpp"

/// What backward says to a `saved` that is not that of its forward.
namespace gatefold::rows {

/// Give what layers and mixtures keep of their x the right extents, so that backward goes on to what their parts kept.
template <class S>
void restamp(S& saved, const BatchStamp& as) {
  if constexpr (requires { saved.layers[0]; }) {
    for (auto& layer : saved.layers) restamp(layer, as);
  } else if constexpr (requires { saved.layer; }) {
    restamp(saved.layer, as);
  } else {
    if constexpr (requires { saved.batch; }) saved.batch = as;
    for_each_mixture(saved, [&](const auto& of) { const_cast<BatchStamp&>(of.batch) = as; });
  }
}

/// A layer of a composition, after forward of some items.
template <class Layer>
struct RunOfSaved {
  Cpu::Context& ctx;
  Layer layer;
  Tensor<float, 2, Cpu> x, dy;
  Extra<Layer, float, Cpu> extra;
  Params<Layer, float, Cpu> params;
  Saved<Layer, float, Cpu> saved{};

  RunOfSaved(Cpu::Context& context, const Layer& of, const Size& size, Index items, const Extras<float>& extras)
      : ctx(context),
        layer(of),
        x(uniform_tensor<float>(ctx, Seed{1}, 1, items, of.in_dim())),
        dy(uniform_tensor<float>(ctx, Seed{2}, 1, items, of.out_dim())),
        extra(extras.of<Extra<Layer, float, Cpu>>({.length = size.sequence, .noise = true}, 0, items)),
        params(init_params<float, Cpu>(of, ctx, Seed{3})) {
    Carry<Layer, float, Cpu> carry;
    Tensor<float, 2, Cpu> y(items, of.out_dim());
    layer.begin(ctx, params, items, carry);
    layer.forward(ctx, params, x, carry, y, saved, extra);
  }
  /// What backward writes, and what it says.
  std::string backward(const Saved<Layer, float, Cpu>& from, std::vector<double>& before, std::vector<double>& after) {
    auto grads = zeros_like(ctx, params);
    auto dx = constant_tensor<float>(ctx, 0.25, x.extent(0), x.extent(1));
    Carry<Layer, float, Cpu> dcarry;
    layer.begin(ctx, params, x.extent(0), dcarry);
    before = support::values(dx, grads, dcarry);
    const std::string said =
        support::message_of([&] { gatefold::backward(layer, ctx, params, x, from, dy, dcarry, dx, grads, extra); });
    after = support::values(dx, grads, dcarry);
    return said;
  }
};
template <class Layer>
RunOfSaved(Cpu::Context&, Layer, const Size&, Index, const Extras<float>&) -> RunOfSaved<Layer>;

/// Saved of nobody, of fewer or more items, or of wider or narrower ones is refused before anything is written. That of
/// the same composition with other experts, slots or heads is refused, or gives the right gradients.
template <class C>
void check_saved(const C& c) {
  constexpr Index items = 2 * odd.sequence;
  Cpu::Context ctx(1);
  const auto layer = c.make(odd);
  const Extras<float> extras(2 * items, odd.item());
  RunOfSaved run(ctx, layer, odd, items, extras);
  const BatchStamp stamp{.items = items, .width = odd.item()};
  std::vector<double> before, after, right;
  CHECK(run.backward(run.saved, before, right) == "no ArgumentError");

  // A `saved` that is taken gives the right gradients, but where what differs left no extent behind: `seen` is false.
  const auto check = [&](const auto& saved, bool refused, bool seen = true) {
    const bool taken = run.backward(saved, before, after) == "no ArgumentError";
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
    RunOfSaved other(ctx, layer, odd, others, extras);
    check_refused(other.saved, true);
  }
  Size wide = odd, narrow = odd;
  wide.width = 18, narrow.tokens = 2;
  for (const Size& size : {wide, narrow}) {
    RunOfSaved other(ctx, c.make(size), size, items, Extras<float>(items, size.item()));
    check_refused(other.saved, false);
  }
  // Only numbers tell: a Recompute keeps nothing of its layer, and no extent is the width that cosines are taken in.
  constexpr bool seen = !std::is_same_v<std::remove_cvref_t<decltype(c.layer)>, RowOf_recompute>;
  constexpr bool cosine = std::is_same_v<std::remove_cvref_t<decltype(c.scores)>, RowOf_cosine_scores>;
  Size all[] = {odd, odd, odd, odd};
  all[0].hidden = 7, all[1].experts = 3, all[2].slots = 3, all[3].heads = 1;
  for (const Size& size : all) {
    RunOfSaved other(ctx, c.make(size), size, items, extras);
    check(other.saved, false, seen && (!cosine || size.hidden == odd.hidden));
  }
}

}  // namespace gatefold::rows
