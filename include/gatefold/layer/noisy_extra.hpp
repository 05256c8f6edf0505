#pragma once

#include "gatefold/attention/attention_trace.hpp"
#include "gatefold/policy/noise.hpp"

namespace gatefold {

/// Extra inputs of a branch that draws random numbers: `noise` has the random numbers, `branch` the other extra inputs.
/// In a Dropout, `branch` is for the branch inside it. In a Mixture whose experts draw random numbers, `branch` is for
/// the gate.
template <class E>
struct NoisyExtra {
  Noise noise{};  // empty: evaluation
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
