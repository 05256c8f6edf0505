#pragma once

#include <array>
#include <cstddef>
#include <tuple>
#include <type_traits>
#include <utility>

#include "gatefold/diagnosis/parts.hpp"
#include "gatefold/layer/activate.hpp"
#include "gatefold/layer/composition.hpp"
#include "gatefold/layer/no_residual.hpp"
#include "gatefold/tensor/sampled_hash.hpp"
#include "gatefold/update/pass.hpp"

namespace gatefold {

namespace detail_::lookup {

template <class Known, class... C>
struct UniqueCarries;
/// The layer for a part P of a Chain: Activate<P> if P is an activation, otherwise P itself.
template <class P>
using ChainPart = std::conditional_t<detail_::policy::is_activation<P>, Activate<P>, P>;
template <class L, class P>
constexpr L chain_part(P part) {
  if constexpr (std::is_same_v<L, P>) {
    return part;
  } else {
    return {};
  }
}

}  // namespace detail_::lookup

/// Runs layers of different types, one after the other: `Chain{Linear{…}, Stack{…}, Linear{…}}`. A chain is itself a
/// layer. Branches and experts can be used as its layers (see layer.hpp). So can activations: an activation `Gelu{}`
/// becomes the layer `Activate<Gelu>{}`.
///
///     x₀ = x,   x_i, carry_i ← layer_i(x_{i−1}, carry_i),   y = x_last                                   (1)
///
/// The carry is the state that an update rule passes from layer to layer, for example momentum. Layers with the same
/// type of carry share one state: two heavy-ball layers share one momentum. Layers without a carry do not change it.
/// Layers that share a state must have the same width. If the first layer reads ids, as an Embedding does, the chain
/// reads ids. If a later norm or attention has model dimension 0, for example `LayerNorm{}`, the chain sets it to the
/// output width of the layer before. Experts (Linear, Mlp) must have their dimensions set.
/// @param x [N, in_dim] in (or ids [N]), y [N, out_dim] out
/// @throws ArgumentError if a shape or an option is invalid, before the first layer writes anything
/// @cost   the sum of the costs of the layers; forward keeps the items between the layers
template <class... L>
struct Chain {
  std::tuple<L...> layers;

  explicit constexpr Chain(L... l) : layers(std::move(l)...) {}
  /// Makes a chain from parts, some of which are activations.
  template <class... P>
  explicit constexpr Chain(P... parts) requires(std::is_same_v<L, detail_::lookup::ChainPart<P>>&&...)
      : layers(detail_::lookup::chain_part<L>(std::move(parts))...) {}

  static constexpr std::size_t size = sizeof...(L);
  GATEFOLD_REQUIRE(size >= 1, "gatefold: a Chain needs at least one layer, Chain{layer}");

  template <class T, class B>
  struct Params {
    std::tuple<gatefold::Params<AsLayer<L, T, B>, T, B>...> layers;
    GATEFOLD_PACK(layers)
  };
  template <class T, class B>
  using First = AsLayer<std::tuple_element_t<0, std::tuple<L...>>, T, B>;
  template <class T, class B>
  using Items = gatefold::Items<First<T, B>, T, B>;
  template <class T, class B>
  struct Saved {
    std::tuple<gatefold::Saved<AsLayer<L, T, B>, T, B>...> layers;
    std::array<Tensor<T, 2, B>, size - 1> between;
    BatchStamp batch;
    void mixtures(auto&& f) const {
      std::apply([&](const auto&... saved) { (for_each_mixture(saved, f), ...); }, layers);
    }
  };
  template <class T, class B>
  struct Carry {
    typename detail_::lookup::UniqueCarries<std::tuple<Nothing<T, B>>, gatefold::Carry<AsLayer<L, T, B>, T, B>...>::Type
        states;
    GATEFOLD_PACK(states)
  };
  template <class T, class B>
  struct Extra {
    std::tuple<gatefold::Extra<AsLayer<L, T, B>, T, B>...> layers{};
  };
  template <class T, class B>
  struct ExtraGrad {
    std::tuple<gatefold::ExtraGrad<AsLayer<L, T, B>, T, B>...> layers{};
  };

  Index in_dim() const { return part<0>().in_dim(); }
  Index out_dim() const { return part<size - 1>().out_dim(); }

  template <class T, class B>
  Params<T, B> init(typename B::Context& ctx, Seed seed) const {
    validate_dims();
    validate_widths<T, B>();
    Params<T, B> p;
    for_each<T, B>([&]<std::size_t At>(const auto& layer) {
      if constexpr (At > 0)
        static_assert(detail_::policy::check_reads_rows<std::remove_cvref_t<decltype(layer)>, T, B>());
      std::get<At>(p.layers) = init_params<T, B>(layer, ctx, seed.fork(At));
    });
    return p;
  }
  template <class T, class B>
  void begin(typename B::Context& ctx, const Params<T, B>& p, Index items, Carry<T, B>& carry) const {
    for_each<T, B>([&]<std::size_t At>(const auto& layer) {
      layer.begin(ctx, std::get<At>(p.layers), items, state<At, T, B>(carry));
    });
  }
  template <class T, class B>
  void validate(const Params<T, B>& p, Index items, const Carry<T, B>& carry, const Extra<T, B>& extra) const {
    validate_dims();
    for_each<T, B>([&]<std::size_t At>(const auto& layer) {
      gatefold::validate(layer, std::get<At>(p.layers), items, state<At, T, B>(carry), std::get<At>(extra.layers));
    });
  }

  GATEFOLD_LAYER_PASSES(Chain)

 private:
  GATEFOLD_RUN_LAYER {
    auto mark = ctx.mark();
    if constexpr (!std::is_null_pointer_v<Keep>) keep->batch.take(x);
    View<const T, 2, B> before;
    for_each<T, B>([&]<std::size_t At>(const auto& layer) {
      View<T, 2, B> out = y;
      if constexpr (At + 1 < size) out = between<At, T, B>(ctx, keep, x.extent(0), layer.out_dim());
      const auto run_from = [&](const auto& in) {
        run_layer<T, B>(layer, ctx, std::get<At>(p.layers), in, state<At, T, B>(carry), out, kept<At>(keep),
                        std::get<At>(extra.layers));
        update::follow_pass(carry, in.data(), out.data());
      };
      if constexpr (At == 0) {
        run_from(x);
      } else {
        run_from(before);
      }
      before = out;
    });
  }
  GATEFOLD_RUN_LAYER_BACKWARD {
    saved.batch.expect_same("Chain.backward", x);  // checks x before any layer writes gradients
    for_each<T, B>([&]<std::size_t At>(const auto& layer) {
      if constexpr (At + 1 < size)
        expect_shape("Chain.backward", "saved.between", saved.between[At], {x.extent(0), layer.out_dim()});
    });
    auto mark = ctx.mark();
    View<const T, 2, B> from = dy;
    for_each_reversed<T, B>([&]<std::size_t At>(const auto& layer) {
      const auto run = [&](const auto& to) {
        run_layer_backward<T, B>(layer, ctx, std::get<At>(p.layers), input<At>(x, saved), std::get<At>(saved.layers),
                                 from, state<At, T, B>(dcarry), to, std::get<At>(grads.layers),
                                 std::get<At>(extra.layers), std::get<At>(dextra.layers));
      };
      if constexpr (At == 0) {
        run(dx);
      } else {
        const auto to = ctx.template scratch<T>(x.extent(0), layer.in_dim());
        fill(ctx, to, 0);
        run(to);
        from = to;
      }
    });
  }
  /// Returns memory for the output of the layer with index `At`: a tensor of *keep in forward, scratch memory of the
  /// context in infer.
  template <std::size_t At, class T, class B, class Keep>
  static View<T, 2, B> between(auto& ctx, Keep keep, Index rows, Index columns) {
    if constexpr (std::is_null_pointer_v<Keep>) {
      return ctx.template scratch<T>(rows, columns);
    } else {
      keep->between[At].resize(rows, columns);
      return keep->between[At].view();
    }
  }
  template <std::size_t At>
  static std::nullptr_t kept(std::nullptr_t) {
    return nullptr;
  }
  template <std::size_t At, class S>
  static auto* kept(S* keep) {
    return &std::get<At>(keep->layers);
  }
  /// Returns the layer with index `At`. If its model dimension is 0, sets it to the output width of the layer before.
  template <std::size_t At>
  decltype(auto) part() const {
    const auto& layer = std::get<At>(layers);
    if constexpr (At > 0 && detail_::hook::any::with_model_dim<std::tuple_element_t<At, std::tuple<L...>>>()) {
      return layer.in_dim() == 0 ? layer.with_model_dim(part<At - 1>().out_dim()) : layer;
    } else {
      return (layer);  // a reference, because a copy can allocate memory
    }
  }
  template <class T, class B, class F>
  void for_each(F&& f) const {
    const auto parts = [&]<std::size_t... At>(std::index_sequence<At...>) {
      (f.template operator()<At>(as_layer<T, B>(part<At>())), ...);
    };
    parts(std::make_index_sequence<size>{});
  }
  template <class T, class B, class F>
  void for_each_reversed(F&& f) const {
    const auto parts = [&]<std::size_t... At>(std::index_sequence<At...>) {
      (f.template operator()<size - 1 - At>(as_layer<T, B>(part<size - 1 - At>())), ...);
    };
    parts(std::make_index_sequence<size>{});
  }
  /// Returns the input of the layer with index `At`: x for the first layer, otherwise the saved output of the layer
  /// before.
  template <std::size_t At, class X, class T, class B>
  static auto input(const X& x, const Saved<T, B>& saved) {
    if constexpr (At == 0) {
      return x;
    } else {
      return saved.between[At - 1].view();
    }
  }
  template <std::size_t At, class T, class B>
  static auto& state(auto& carry) {
    return std::get<gatefold::Carry<AsLayer<std::tuple_element_t<At, std::tuple<L...>>, T, B>, T, B>>(carry.states);
  }
  void validate_dims() const {
    const auto parts = [&]<std::size_t... At>(std::index_sequence<At...>) {
      (expect(part<At>().out_dim() == part<At + 1>().in_dim(), "Chain", Joined{"layers.", At + 1, ".in_dim"},
              Joined{part<At>().out_dim(), " (the out_dim of the layer before)"}, part<At + 1>().in_dim()),
       ...);
    };
    parts(std::make_index_sequence<size - 1>{});
  }
  /// Requires that all layers that share a state (the carry, for example momentum) have the same width.
  template <class T, class B>
  void validate_widths() const {
    for_each<T, B>([&]<std::size_t At>(const auto& a) {
      for_each<T, B>([&]<std::size_t J>(const auto& b) {
        using CarryA = gatefold::Carry<std::remove_cvref_t<decltype(a)>, T, B>;
        using CarryB = gatefold::Carry<std::remove_cvref_t<decltype(b)>, T, B>;
        if constexpr (At < J && std::is_same_v<CarryA, CarryB> && !std::is_same_v<CarryA, Nothing<T, B>>)
          expect(a.out_dim() == b.out_dim(), "Chain", Joined{"layers.", J, ".out_dim"},
                 Joined{a.out_dim(), " (the out_dim of layers.", At,
                        ", because layers with the same type of carry share one carry)"},
                 b.out_dim());
      });
    });
  }
};
template <class... L>
Chain(L...) -> Chain<detail_::lookup::ChainPart<L>...>;

/// Joins two chains to one chain that runs the layers of `a`, then the layers of `b`. Layers of `a` and `b` with the
/// same type of carry (for example momentum) share one state. If you pass `b` as one layer of a chain instead, the
/// layers of `b` share a separate state.
template <class... A, class... B>
Chain<A..., B...> joined_chain(const Chain<A...>& a, const Chain<B...>& b) {
  return std::apply([](const auto&... layers) { return Chain<A..., B...>(layers...); },
                    std::tuple_cat(a.layers, b.layers));
}

namespace detail_::lookup {

template <class Tuple, class C>
struct WithCarry;
template <class... Known, class C>
struct WithCarry<std::tuple<Known...>, C> {
  static constexpr bool is_new = !(std::is_same_v<Known, C> || ...);
  using Type = std::conditional_t<is_new, std::tuple<Known..., C>, std::tuple<Known...>>;
};
template <class Known, class... C>
struct UniqueCarries {
  using Type = Known;
};
template <class Known, class First, class... Rest>
struct UniqueCarries<Known, First, Rest...> : UniqueCarries<typename WithCarry<Known, First>::Type, Rest...> {};

}  // namespace detail_::lookup
}  // namespace gatefold
