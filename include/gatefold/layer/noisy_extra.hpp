#pragma once

#include "gatefold/attention/attention_trace.hpp"
#include "gatefold/policy/noise.hpp"
#include "gatefold/policy/policy.hpp"

namespace gatefold {

/// Extra inputs of a branch that draws random numbers: noise, and the extra inputs without it. `.branch` is the extra
/// input of the branch inside a Dropout, or of the gate in a Mixture whose experts draw.
template <class E>
struct NoisyExtra {
  Noise noise{};  // empty: evaluation
  E branch{};

  /// The same type if the branch needs no trace.
  using WithoutTrace = NoisyExtra<gatefold::WithoutTrace<E>>;
  template <class Trace>
  static NoisyExtra with_trace(const WithoutTrace& rest, const Trace& trace) {
    return {rest.noise, gatefold::with_trace<E>(rest.branch, trace)};
  }
};

}  // namespace gatefold
