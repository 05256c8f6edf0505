#pragma once

#include <type_traits>

#include "gatefold/diagnosis/parts.hpp"
#include "gatefold/layer/composition.hpp"
#include "gatefold/layer/no_residual.hpp"
#include "gatefold/policy/policy.hpp"

namespace gatefold {

/// Applies a layer to the tokens of the items: an item of width length · D is `length` tokens of width D.
///
///     y[n] = (layer(x[n,0]), …, layer(x[n,length−1]))                                                   (1)
///
/// PerToken only changes the extents of the views, and copies no items. The layer gets N·length tokens as its items.
/// The carry of the layer (its state) has N·length rows. If an extra input of the layer has a sequence length of 0
/// (attention, mixings, Soft MoE), PerToken sets this length to `length`, so that each item of PerToken is a sequence.
/// @param x [N, length · D] in, y [N, length · D_out] out
/// @throws ArgumentError unless length >= 1
template <class LayerT>
struct PerToken {
  Index length;
  LayerT layer;

  template <class T, class B>
  using Inner = AsLayer<LayerT, T, B>;

  GATEFOLD_PARAMS_OF(layer, Inner<T, B>)
  template <class T, class B>
  struct Saved {
    gatefold::Saved<Inner<T, B>, T, B> layer;
    void mixtures(auto&& f) const { for_each_mixture(layer, f); }
  };
  /// Wraps the carry of the inner layer (the state that an update rule passes from layer to layer) in a separate type.
  /// Layers of a Chain with the same type of carry share one state, but tokens and whole items need separate states.
  template <class T, class B>
  struct Carry {
    gatefold::Carry<Inner<T, B>, T, B> tokens;
    GATEFOLD_PACK(tokens)
  };
  template <class T, class B>
  using Extra = gatefold::Extra<Inner<T, B>, T, B>;
  template <class T, class B>
  using ExtraGrad = gatefold::ExtraGrad<Inner<T, B>, T, B>;

  Index in_dim() const { return length * layer.in_dim(); }
  Index out_dim() const { return length * layer.out_dim(); }

  GATEFOLD_INIT_OF(PerToken, as_layer<T, B>(layer))
  template <class T, class B>
  void begin(typename B::Context& ctx, const Params<T, B>& p, Index items, Carry<T, B>& carry) const {
    as_layer<T, B>(layer).begin(ctx, p.layer, items * length, carry.tokens);
  }
  template <class T, class B>
  void validate(const Params<T, B>& p, Index items, const Carry<T, B>& carry,
                const NonDeduced<Extra<T, B>>& extra) const {
    expect_options();
    gatefold::validate(as_layer<T, B>(layer), p.layer, items * length, carry.tokens, of_items(extra));
  }

  GATEFOLD_LAYER_PASSES(PerToken)

 private:
  GATEFOLD_RUN_LAYER {
    run_layer<T, B>(as_layer<T, B>(layer), ctx, p.layer, tokens(x, layer.in_dim()), carry.tokens,
                    tokens(y, layer.out_dim()), part_of(keep, &Saved<T, B>::layer), of_items(extra));
  }
  GATEFOLD_RUN_LAYER_BACKWARD {
    run_layer_backward<T, B>(as_layer<T, B>(layer), ctx, p.layer, tokens(x, layer.in_dim()), saved.layer,
                             tokens(dy, layer.out_dim()), dcarry.tokens, tokens(dx, layer.in_dim()), grads.layer,
                             of_items(extra), dextra);
  }
  void expect_options() const { expect(length >= 1, "PerToken", "length", "at least 1", length); }
  /// Returns a copy of the extra inputs in which every sequence length that is 0 is set to the number of tokens of an
  /// item.
  template <class E>
  E of_items(E extra) const {
    detail_::lookup::for_each_extra(extra, [&]<class P>(P& part) {
      if constexpr (detail_::hook::input::length<P, Index>())
        if (part.length == 0) part.length = length;
    });
    return extra;
  }
  template <class V>
  V tokens(const V& items, Index width) const {
    return items.as(items.extent(0) * length, width);
  }
};
template <class Count, class L, class = std::enable_if_t<std::is_convertible_v<Count, Index>>>
PerToken(Count, L) -> PerToken<L>;

}  // namespace gatefold
