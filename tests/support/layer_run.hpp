#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "gatefold/policies.hpp"
#include "support/naive_backend.hpp"

/// Runs a layer with inputs of any kind on any backend, and defines how much two backends may differ.
namespace gatefold::test {

/// Draws random numbers on the host, the same for all backends.
struct HostSide {
  Naive::Context naive;
};

/// The largest allowed difference between the values of an element on two backends. Sums have at most n terms, and u is
/// half an epsilon:
///
///     |a − b| <= n u · (the largest |a| of that tensor) + (r − n u) |a|                                     (1)
///
/// A different order changes a sum by up to n u times its terms. If terms cancel, the largest element of the tensor
/// shows how large they may be. The relative part covers different roundings of exp and log.
template <class T>
inline constexpr double relative_tolerance = std::is_same_v<T, double> ? 1e-12 : 2e-5;  // r
template <class T>
inline constexpr double summation_tolerance = 256 * 0.5 * std::numeric_limits<T>::epsilon();  // n u

/// Properties of the expected results, besides the agreement of both backends.
struct Expected {
  double scale = 1;                  // factor of (1), for policies that lose digits
  double of_doubles = 1;             // an additional factor for double tensors that a policy computes from floats
  std::vector<std::string> zeros{};  // names of tensors that are entirely 0, or of packs whose tensors all are
  bool any_zeros = false;            // true if any tensor may be 0
  double rounding = 0;               // a tensor with no larger value counts as 0, for sums whose terms cancel
  bool nan = false;                  // true if NaN equals NaN
  Index slots = -1, used = 0;  // in a tensor with `slots` rows (or a multiple), only the part of `used` rows is defined

  bool zero(const std::string& name) const {
    return std::any_of(zeros.begin(), zeros.end(), [&](const std::string& z) {
      return name.compare(0, z.size(), z) == 0 && (name.size() == z.size() || name[z.size()] == '.');
    });
  }
};

/// A case: sizes, and the extra inputs of policies.
struct Case {
  Index items = 37;
  Index length = 0;      // items per sequence, for policies that use sequences; 0: all items are one sequence
  bool padding = false;  // true: every fifth item is padding and holds NaN
  bool causal = true;    // for the attention that a gate follows
  bool noise = true;     // for policies that draw noise
  bool auxiliary = true;
  Index past = 0;  // number of earlier items before each sequence
  Index k = 0;     // picks per item in this call, for selections that take this number; 0: the option of the policy
  std::optional<double> tau{};  // temperature of a similarity in this call; empty: the option of the policy
  Seed seed{1};
  double spread = 1;  // items are uniform in ±spread, except for values that `edit` changes
  std::function<double(Index item, Index column, double value)> edit{};
  Expected expected{};
};

/// Returns random numbers, which the naive backend draws for both backends.
template <class T, class... I>
auto random_tensor(HostSide& on, Seed seed, double bound, I... extents) {
  return uniform_tensor<T>(on.naive, seed, bound, extents...);
}
template <class V>
bool all_zero(const V& t) {
  return std::all_of(t.data(), t.data() + t.size(), [](auto v) { return v == 0; });
}
/// Fills floating-point tensors that hold only zeros with random numbers, because parameters and carries that start as
/// 0 would hide mistakes. It is a named type instead of a lambda, so that code that several policies share is compiled
/// once.
struct FillZeros {
  HostSide& on;
  Seed seed;
  void operator()(const Name&, auto& t) {
    if constexpr (std::is_floating_point_v<std::remove_cvref_t<decltype(*t.data())>>)
      if (all_zero(t)) fill_uniform(on.naive, seed = seed.fork(1), -0.5, 0.5, t);
  }
};
template <class T>
Tensor<T, 2, Naive> items_of(HostSide& on, const Case& c, Index width) {
  auto x = random_tensor<T>(on, c.seed.fork(1), c.spread, c.items, width);
  for (Index n = 0; n < c.items; ++n)
    for (Index d = 0; d < width; ++d) {
      if (c.padding && n % 5 == 3) x(n, d) = std::numeric_limits<T>::quiet_NaN();
      if (c.edit) x(n, d) = static_cast<T>(c.edit(n, d, x(n, d)));
    }
  return x;
}

/// The tensors to which extra inputs point.
template <class T, class B>
struct Inputs {
  Tensor<T, 1, B> valid, attended;               // [N], or [0] without padding: masks of a gate and of attention
  Tensor<Index, 1, B> ids;                       // [N]
  Tensor<T, 2, B> q, k, v, log_sum_exp, output;  // the trace of an attention with two heads
  Tensor<T, 3, B> past;                          // [1, sequences · past, width]
  Tensor<Index, 2, B> recorded;                  // [3, 2·N] two of three experts for each item, in three layers
  Tensor<Index, 1, B> tokens;                    // [N] ids of a vocabulary of 7

  GATEFOLD_PACK(past, valid, attended, ids, q, k, v, log_sum_exp, output, recorded, tokens)
};
template <class T>
Inputs<T, Naive> inputs_of(HostSide& on, const Case& c, Index width) {
  const auto random = [&](std::uint64_t stream, Index rows, Index columns) {
    return random_tensor<T>(on, c.seed.fork(20 + stream), 1, rows, columns);
  };
  const Index masked = c.padding ? c.items : 0, past = c.past * (c.length > 0 ? c.items / c.length : 1);
  Inputs<T, Naive> in{Tensor<T, 1, Naive>(masked),
                      Tensor<T, 1, Naive>(masked),
                      Tensor<Index, 1, Naive>(c.items),
                      random(0, c.items, width),
                      random(1, c.items, width),
                      random(2, c.items, width),
                      random(3, c.items, 2),
                      random(4, width, width),
                      random_tensor<T>(on, c.seed.fork(25), 1, 1, past, width),
                      Tensor<Index, 2, Naive>(3, 2 * c.items),
                      Tensor<Index, 1, Naive>(c.items)};
  for (Index i = 0; i < in.recorded.size(); ++i) in.recorded.data()[i] = (i / 2 + i % 2) % 3;
  for (Index n = 0; n < masked; ++n) {
    in.valid(n) = n % 5 == 3 ? 0 : 1;
    in.attended(n) = n % 7 == 5 ? 0 : 1;
  }
  for (Index n = 0; n < c.items; ++n) {
    in.ids(n) = n % 7 == 6 ? -1 : 1000 * n + 7;
    in.tokens(n) = 3 * n % 7;
  }
  return in;
}

/// Returns the extra inputs of any policy, from the case and its tensors.
template <class E, class T, class B>
E extra_of(const Case& c, const Inputs<T, B>& in) {
  if constexpr (requires(E e) { e.scores, e.mixing, e.selection; }) {
    return {extra_of<decltype(E::scores)>(c, in), extra_of<decltype(E::mixing)>(c, in),
            extra_of<decltype(E::selection)>(c, in), in.valid, c.auxiliary};
  } else if constexpr (std::is_same_v<E, Noise>) {
    return c.noise ? Noise{Random{c.seed.fork(2), 3}} : Noise{};
  } else if constexpr (std::is_same_v<E, Sequence<T, B>>) {
    return {c.length, in.valid};
  } else if constexpr (requires(E e) { e.tau; }) {
    return {c.length, {}, c.tau};
  } else if constexpr (requires(E e) { e.k; }) {
    return {c.k};
  } else if constexpr (requires(E e) { e.trace; }) {
    return {AttentionTrace<const T, B>{in.q, in.k, in.v, in.log_sum_exp, in.output, c.length > 0 ? c.length : c.items,
                                       0.7, c.causal, in.attended},
            {}};
  } else if constexpr (requires(E e) { e.ids, e.distilled; }) {
    return {View<const Index, 1, B>(in.tokens), !c.auxiliary};
  } else if constexpr (requires(E e) { e.ids; }) {
    return {View<const Index, 1, B>(in.ids)};
  } else if constexpr (requires(E e) { e.recorded; }) {
    return {View<const Index, 2, B>(in.recorded)};
  } else if constexpr (requires(E e) { e.noise, e.branch; }) {
    return {extra_of<decltype(E::noise)>(c, in), extra_of<decltype(E::branch)>(c, in)};
  } else if constexpr (requires(E e) { e.relative, e.memory; }) {
    return {.length = c.length, .valid = in.valid, .memory = {in.past, {}}, .noise = extra_of<Noise>(c, in)};
  } else if constexpr (requires(E e) { e.length, e.valid, e.cache; }) {
    return {.length = c.length, .valid = in.valid};
  } else if constexpr (requires(E e) { e.attention, e.layer; }) {
    return {extra_of<decltype(E::attention)>(c, in), extra_of<decltype(E::layer)>(c, in)};
  } else if constexpr (requires(E e) { e.layers; }) {
    return [&]<class... Part>(std::type_identity<std::tuple<Part...>>) {
      return E{{extra_of<Part>(c, in)...}};
    }(std::type_identity<decltype(E::layers)>{});
  } else {
    return {};
  }
}

/// Copies floating-point numbers to a backend as floats or doubles, and integers unchanged.
template <class B>
struct CopyTo {
  typename B::Context& ctx;
  void operator()(const Name&, const auto& from, auto& to) const {
    using T = std::remove_cvref_t<decltype(*to.data())>;
    const std::vector<T> v(from.data(), from.data() + from.size());
    B::from_host(ctx, to.size(), v.data(), to.data());
  }
};
template <class P, class B, class Q>
P copied_to(typename B::Context& ctx, const Q& from) {
  P to;
  shape_like(to, from);
  for_each_tensor(CopyTo<B>{ctx}, from, to);
  return to;
}

/// Runs all functions of a layer on one backend and holds their results.
template <class L, class T, class B>
struct LayerRun {
  typename B::Context& ctx;
  AsLayer<L, T, B> layer;
  using Layer = AsLayer<L, T, B>;
  Params<Layer, T, B> params;
  Tensor<T, 2, B> x;
  Inputs<T, B> in;
  Extra<Layer, T, B> extra;
  Params<Layer, T, B> grads;
  Tensor<T, 2, B> dx, y, inferred;
  Carry<Layer, T, B> carry{}, inferred_carry{}, dcarry{};
  Saved<Layer, T, B> saved{};

  LayerRun(typename B::Context& context, const L& part, const Case& c, Params<Layer, T, B> p, Tensor<T, 2, B> items,
           Inputs<T, B> inputs)
      : ctx(context),
        layer(as_layer<T, B>(part)),
        params(std::move(p)),
        x(std::move(items)),
        in(std::move(inputs)),
        extra(extra_of<Extra<Layer, T, B>>(c, in)),
        grads(zeros_like(ctx, params)),
        dx(constant_tensor<T>(ctx, 0, x.extent(0), layer.in_dim())),
        y(x.extent(0), layer.out_dim()),
        inferred(x.extent(0), layer.out_dim()) {
    for (auto* of : {&carry, &inferred_carry, &dcarry}) layer.begin(ctx, params, x.extent(0), *of);
  }
  void forward() {
    forward_to_keep();
    infer<T, B>(layer, ctx, params, x, inferred_carry, inferred, extra);
  }
  void forward_to_keep() { layer.forward(ctx, params, x, carry, y, saved, extra); }
  void backward(const Tensor<T, 2, B>& dy) {
    gatefold::backward(layer, ctx, params, x, saved, dy, dcarry, dx, grads, extra);
  }
};

}  // namespace gatefold::test
