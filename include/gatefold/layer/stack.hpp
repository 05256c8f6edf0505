#pragma once

#include <cstddef>
#include <type_traits>
#include <utility>
#include <vector>

#include "gatefold/diagnosis/parts.hpp"
#include "gatefold/layer/composition.hpp"
#include "gatefold/layer/no_residual.hpp"
#include "gatefold/tensor/sampled_hash.hpp"

namespace gatefold {

/// Runs `depth` layers of one type, one after the other, each with separate parameters. A stack is itself a layer. The
/// carry, a state such as momentum, passes through all its layers.
///
///     x₀ = x,   x_l, carry ← layer(x_{l−1}, carry; params_l, extra_l),   y = x_depth                     (1)
///
/// If the extra inputs have noise (random numbers), each layer gets separate random numbers.
/// @param x [N, D] in, y [N, D] out
/// @throws ArgumentError if a shape or an option is invalid, before the first layer writes anything
/// @cost   depth times the cost of the layer; forward keeps the output [N, D] of each layer except the last
template <class LayerT>
struct Stack {
  LayerT layer;
  Index depth = 1;
  std::vector<LayerT> each{};  // [depth] the options of each layer; empty: `layer` has the options of all

  GATEFOLD_TYPES_OF_LAYER(LayerT, layer)

  template <class T, class B>
  struct Params {
    std::vector<gatefold::Params<Inner<T, B>, T, B>> layers;
    GATEFOLD_PACK(layers)
  };
  template <class T, class B>
  struct Saved {
    std::vector<gatefold::Saved<Inner<T, B>, T, B>> layers;
    std::vector<Tensor<T, 2, B>> between;  // output [N, D] of each layer except the last
    BatchStamp batch;
    // Number of layers in the last forward. The vectors can be longer, if an earlier stack with more layers used them.
    Index depth = 0;
    void mixtures(auto&& f) const {
      for (Index l = 0; l < depth; ++l) for_each_mixture(at(layers, l), f);
    }
  };

  template <class T, class B>
  Params<T, B> init(typename B::Context& ctx, Seed seed) const {
    static_assert(detail_::policy::parts_fit<Stack, T, B>());
    expect_options();
    Params<T, B> p;
    for (Index l = 0; l < depth; ++l)
      p.layers.push_back(init_params<T, B>(number<T, B>(l), ctx, seed.fork(static_cast<std::uint64_t>(l))));
    return p;
  }
  template <class T, class B>
  void begin(typename B::Context& ctx, const Params<T, B>& p, Index items, NonDeduced<Carry<T, B>>& carry) const {
    validate_params(p);
    number<T, B>(0).begin(ctx, p.layers[0], items, carry);
  }
  template <class T, class B>
  void validate(const Params<T, B>& p, Index items, const NonDeduced<Carry<T, B>>& carry,
                const NonDeduced<Extra<T, B>>& extra) const {
    validate_params(p);
    for (Index l = 0; l < depth; ++l)
      gatefold::validate(number<T, B>(l), at(p.layers, l), items, carry, at_layer(extra, l));
  }

  GATEFOLD_LAYER_PASSES(Stack)

 private:
  GATEFOLD_RUN_LAYER {
    auto mark = ctx.mark();
    View<T, 2, B> even, odd;
    if constexpr (std::is_null_pointer_v<Keep>) {
      even = ctx.template scratch<T>(x.extent(0), out_dim()), odd = ctx.template scratch<T>(x.extent(0), out_dim());
    } else {
      keep->batch.take(x);
      keep->depth = depth;
      grow(keep->layers, depth);
      grow(keep->between, depth - 1);
    }
    View<const T, 2, B> in = x;
    for (Index l = 0; l < depth; ++l) {
      View<T, 2, B> out = l + 1 == depth ? y : l % 2 ? odd : even;
      if constexpr (std::is_null_pointer_v<Keep>) {
        run_layer<T, B>(number<T, B>(l), ctx, at(p.layers, l), in, carry, out, keep, at_layer(extra, l));
      } else {
        if (l + 1 < depth) {
          at(keep->between, l).resize(x.extent(0), out_dim());
          out = at(keep->between, l);
        }
        run_layer<T, B>(number<T, B>(l), ctx, at(p.layers, l), in, carry, out, &at(keep->layers, l),
                        at_layer(extra, l));
      }
      in = out;
    }
  }
  GATEFOLD_RUN_LAYER_BACKWARD {
    saved.batch.expect_same("Stack.backward", x);  // checks x before the last layer writes gradients
    expect(saved.depth == depth, "Stack.backward", "saved.depth",
           Joined{depth, " (the depth of this Stack; pass the saved of its forward)"}, saved.depth);
    for (Index l = 0; l + 1 < depth; ++l)
      expect_shape("Stack.backward", "saved.between", at(saved.between, l), {x.extent(0), out_dim()});
    auto mark = ctx.mark();
    auto even = ctx.template scratch<T>(x.extent(0), in_dim()), odd = ctx.template scratch<T>(x.extent(0), in_dim());
    View<const T, 2, B> from = dy;
    for (Index l = depth; l-- > 0;) {
      const View<const T, 2, B> in = l > 0 ? View<const T, 2, B>(at(saved.between, l - 1)) : x;
      View<T, 2, B> to = dx;
      if (l > 0) {
        to = l % 2 ? odd : even;
        fill(ctx, to, 0);
      }
      run_layer_backward<T, B>(number<T, B>(l), ctx, at(p.layers, l), in, at(saved.layers, l), from, dcarry, to,
                               at(grads.layers, l), at_layer(extra, l), dextra);
      from = to;
    }
  }
  /// Returns layer number l.
  template <class T, class B>
  decltype(auto) number(Index l) const {
    return as_layer<T, B>(each.empty() ? layer : at(each, l));
  }
  template <class V>
  static auto& at(V& vector, Index l) {
    return vector[static_cast<std::size_t>(l)];
  }
  /// Makes a vector at least `count` long. Never shortens it, so that a stack with more layers can reuse the memory
  /// later.
  static void grow(auto& vector, Index count) {
    if (static_cast<Index>(vector.size()) < count) vector.resize(static_cast<std::size_t>(count));
  }
  void expect_options() const {
    expect(depth >= 1, "Stack", "depth", "at least 1", depth);
    expect(each.empty() || static_cast<Index>(each.size()) == depth, "Stack", "each.size()",
           Joined{"0 or ", depth, " (the depth of this Stack)"}, each.size());
    for (const LayerT& one : each)
      expect(one.in_dim() == in_dim() && one.out_dim() == out_dim(), "Stack", "each: widths",
             Joined{in_dim(), " and ", out_dim(), ", as the first layer"},
             Joined{one.in_dim(), " and ", one.out_dim()});
    expect(depth == 1 || in_dim() == out_dim(), "Stack", "layer.out_dim",
           Joined{in_dim(), " (its in_dim, because depth is more than 1)"}, out_dim());
  }
  void validate_params(const auto& p) const {
    expect_options();
    expect(static_cast<Index>(p.layers.size()) == depth, "Stack", "params.layers.size()",
           Joined{depth, " (the depth of this Stack)"}, p.layers.size());
  }
};
template <class L>
Stack(L) -> Stack<L>;
template <class L, class Count, class = std::enable_if_t<detail_::lookup::are_stacked<L, Count>>>
Stack(L, Count) -> Stack<L>;

/// Returns a Stack of layers of one type with different options.
/// @throws ArgumentError unless there is at least one layer
template <class LayerT>
Stack<LayerT> stack_of(std::vector<LayerT> layers) {
  expect(!layers.empty(), "stack_of", "layers", "at least 1 layer", 0);
  LayerT first = layers.front();
  const auto depth = static_cast<Index>(layers.size());
  return {std::move(first), depth, std::move(layers)};
}

}  // namespace gatefold
