#pragma once

#include <concepts>
#include <type_traits>

#include "gatefold/attention/window.hpp"
#include "gatefold/policy/noise.hpp"
#include "gatefold/policy/policy.hpp"

namespace gatefold {

/// The tensors of an attention that some gates (routers) read. From this trace, a gate can recompute the attention
/// probabilities A_h of each head h, and the value that the head writes for a token. The L × L matrix of a sequence of
/// L items is not stored.
///
///     A_h[i,j] = exp(scale · ⟨q_h,i, k_h,j⟩ − log_sum_exp[i,h]) if item i attends to j, else 0           (1)
///     m_h,j    = v_h,j O_h          the value of token j as head h writes it to the residual stream      (2)
///
/// T is const for the trace, and not const for its gradient. The gradient uses only q, k, v, log_sum_exp, output and
/// places. The items of a sequence are consecutive. Head h uses columns [h·D/H, (h+1)·D/H) of q, k and v. O_h is the
/// matrix of the rows of `output` with the same numbers. An attention can add the entropies −Σ_j A log A of its rows if
/// it has computed them. Without entropies, a gate that needs them recomputes A.
///
/// An attention to a window can have position keys, one for each place in the window. In (1), k_h,j + places_o then
/// replaces k_h,j if j is at place o of the window of i. log_sum_exp and the entropies include all keys of the
/// attention, also the keys of remembered items, which are not part of the trace.
template <class T, class B>
struct AttentionTrace {
  View<T, 2, B> q, k, v;      // [N, D]
  View<T, 2, B> log_sum_exp;  // [N, heads]
  View<T, 2, B> output;       // [D, D]
  Index length = 0;           // items per sequence
  double scale = 1;
  bool causal = true;
  View<const std::remove_const_t<T>, 1, B> valid{};    // [N] 1 for items, 0 for padding; empty: no padding
  View<const std::remove_const_t<T>, 2, B> entropy{};  // [N, heads] entropies of the probabilities; empty: not computed
  // The window of keys to which each item attends, among the items of the trace (without items remembered from earlier
  // segments). Width 0 means no window: an item attends to all keys that `causal` and `valid` allow.
  detail_::attending::Window window{};
  View<T, 2, B> places{};  // [window.width, D/H] position keys of the window; empty: none

  GATEFOLD_HD Index heads() const { return log_sum_exp.extent(1); }

  /// Returns the part of the trace for the items [first, first + count), which must be whole sequences.
  AttentionTrace rows(Index first, Index count) const {
    AttentionTrace part = *this;
    for (auto* t : {&part.q, &part.k, &part.v, &part.log_sum_exp}) *t = t->rows(first, count);
    part.valid = rows_if_any(valid, first, count);
    part.entropy = rows_if_any(entropy, first, count);
    return part;
  }
};

/// An attention trace that the caller of a layer must pass as an extra input. If it is missing, the compiler reports
/// this with a static_assert.
template <class T, class B>
struct Required<AttentionTrace<T, B>> {
  AttentionTrace<T, B> value;
  Required(AttentionTrace<T, B> trace) : value(trace) {}
  template <class Given = T>
  Required() : value{} {
    GATEFOLD_REQUIRE(
        (!std::is_same_v<Given, T>),
        "gatefold: an AttentionAware gate needs an attention trace: wrap attention and layer in Block{attention, "
        "layer}, or pass the trace in the extra; see docs/reference/inputs.md#inputs-of-the-librarys-gates");
  }
};

namespace detail_::lookup {

template <class E>
auto without_trace() {
  if constexpr (requires { typename E::WithoutTrace; }) {
    return std::type_identity<typename E::WithoutTrace>{};
  } else {
    GATEFOLD_REQUIRE(
        !detail_::named::WithoutTrace<E>() && !detail_::named::with_trace<E>(),
        "gatefold: an Extra that takes a trace has a nested type WithoutTrace and static with_trace(rest, trace); see "
        "docs/reference/optional_members.md");
    return std::type_identity<E>{};
  }
}

}  // namespace detail_::lookup

/// The type of a layer's extra inputs without the attention trace. The caller of a Block (attention followed by a
/// layer) passes inputs of this type, because the Block itself adds the trace. The type is `E::WithoutTrace`, or E if
/// no part of E needs a trace.
template <class E>
using WithoutTrace = typename decltype(detail_::lookup::without_trace<E>())::type;

/// Returns a layer's extra inputs of type E, made of `rest` (the inputs that the caller passed) and the attention
/// trace. Calls `E::with_trace(rest, trace)`, or returns `rest` if E needs no trace.
template <class E, class Trace>
E with_trace(const WithoutTrace<E>& rest, const Trace& trace) {
  if constexpr (requires { typename E::WithoutTrace; }) {
    constexpr bool fits = requires {
      { E::with_trace(rest, trace) } -> std::same_as<E>;
    };
    GATEFOLD_REQUIRE(fits,
                     "gatefold: with_trace of an Extra that has WithoutTrace must be callable as static "
                     "with_trace(rest, trace), which returns the Extra; see docs/reference/optional_members.md");
    if constexpr (fits) return E::with_trace(rest, trace);
  } else {
    return rest;
  }
}

/// Calls `dextra.set_trace(trace)` if D, the gradient of a layer's extra inputs, has this function. The layer's
/// backward then adds the gradient of the attention trace to the views in `trace`.
template <class D, class Trace>
void set_trace(D& dextra, const Trace& trace) {
  if constexpr (detail_::hook::extra::set_trace<D, const Trace>()) dextra.set_trace(trace);
}

/// Extra inputs of a branch that draws random numbers: `noise` has the random numbers, `branch` the other extra inputs.
/// In a Dropout, `branch` has the extra inputs of the branch that the Dropout wraps. In a Mixture whose experts draw
/// random numbers, `branch` has the extra inputs of the gate.
template <class E>
struct NoisyExtra {
  Noise noise{};  // empty: no random numbers, as in inference
  E branch{};

  /// The type of extra inputs like NoisyExtra, but without an attention trace (the tensors of an attention that a gate
  /// can read).
  using WithoutTrace = NoisyExtra<gatefold::WithoutTrace<E>>;
  template <class Trace>
  static NoisyExtra with_trace(const WithoutTrace& rest, const Trace& trace) {
    return {rest.noise, gatefold::with_trace<E>(rest.branch, trace)};
  }
};

}  // namespace gatefold
