#pragma once

#include <type_traits>
#include <utility>

#include "gatefold/backend/initial_values.hpp"
#include "gatefold/diagnosis/parts.hpp"
#include "gatefold/layer/composition.hpp"
#include "gatefold/layer/no_residual.hpp"
#include "gatefold/policy/options.hpp"
#include "gatefold/policy/policy.hpp"

namespace gatefold {

namespace detail_::lookup {

/// Gives `keys` to every RelativeAttention of a model: sets the member `relative` in each part of the extra inputs that
/// has this member. `extra` can also be the gradients of extra inputs. Returns true if there is such a part.
template <class E, class V>
bool set_relative(E& extra, const V& keys) {
  bool any = false;
  for_each_extra(extra, [&]<class P>(P& part) {
    if constexpr (detail_::hook::input::relative<P, V>()) {
      part.relative = keys;
      any = true;
    }
  });
  return any;
}

}  // namespace detail_::lookup

/// Holds the learned position keys e of all RelativeAttention inside a layer: one tensor with one gradient. With
/// RelativeKeys around a stack, all layers share the tensor; with RelativeKeys inside a stack, each layer has a
/// separate tensor.
///
///     y, carry ← layer(x, carry; e),   e [window, head_dim]                                             (1)
///
/// Source: the code of papers 001 and 002, whose layers and heads share e [head_dim, window], initially N(0, 1).
/// Attentions get e through their extra inputs. An attention inside two RelativeKeys gets the keys of the inner one.
/// @param x [N, D] in, y [N, out_dim] out
/// @param window    window of the attentions inside the layer, in items
/// @param head_dim  D / heads of the attentions inside the layer
/// @throws ArgumentError if the layer contains no RelativeAttention, or one with another window or another D / heads
/// @cost   the layer, and window · head_dim parameters
template <class LayerT>
struct RelativeKeys {
  Index window = 0, head_dim = 0;
  LayerT layer;

  GATEFOLD_AROUND_LAYER(LayerT, layer)

  template <class T, class B>
  struct Params {
    static constexpr bool gradient_is_optional = true;
    Tensor<T, 2, B> relative;  // [window, head_dim]
    gatefold::Params<Inner<T, B>, T, B> layer;
    GATEFOLD_PACK(relative, layer)
  };
  template <class T, class B>
  using Saved = gatefold::Saved<Inner<T, B>, T, B>;

  template <class T, class B>
  Params<T, B> init(typename B::Context& ctx, Seed seed) const {
    expect_options();
    const auto here = ctx.here();
    Tensor<T, 2, B> relative(window, head_dim);
    fill_normal(ctx, seed.fork(0), 1, relative);
    return {std::move(relative), init_params<T, B>(as_layer<T, B>(layer), ctx, seed.fork(1))};
  }
  template <class T, class B>
  void validate(const Params<T, B>& p, Index items, const NonDeduced<Carry<T, B>>& carry,
                const NonDeduced<Extra<T, B>>& extra) const {
    expect_options();
    expect_shape("RelativeKeys", "params.relative", p.relative, {window, head_dim});
    gatefold::validate(as_layer<T, B>(layer), p.layer, items, carry, with_keys(p, extra));
  }

  GATEFOLD_LAYER_PASSES(RelativeKeys)

 private:
  GATEFOLD_RUN_LAYER { run_layer<T, B>(as_layer<T, B>(layer), ctx, p.layer, x, carry, y, keep, with_keys(p, extra)); }
  GATEFOLD_RUN_LAYER_BACKWARD {
    ExtraGrad<T, B> to = dextra;
    if (!grads.relative.is_skipped()) detail_::lookup::set_relative(to, grads.relative.view());
    run_layer_backward<T, B>(as_layer<T, B>(layer), ctx, p.layer, x, saved, dy, dcarry, dx, grads.layer,
                             with_keys(p, extra), to);
  }
  void expect_options() const { expect_sizes("RelativeKeys", {{"window", window}, {"head_dim", head_dim}}); }
  template <class T, class B>
  static Extra<T, B> with_keys(const Params<T, B>& p, const NonDeduced<Extra<T, B>>& given) {
    Extra<T, B> extra = given;
    expect(detail_::lookup::set_relative(extra, p.relative.view()), "RelativeKeys", "layer",
           "a RelativeAttention inside", "none");
    return extra;
  }
};
template <class Window, class Dim, class L,
          class = std::enable_if_t<std::is_convertible_v<Window, Index> && std::is_convertible_v<Dim, Index>>>
RelativeKeys(Window, Dim, L) -> RelativeKeys<L>;

}  // namespace gatefold
