#pragma once

#include "gatefold/attention/attention_trace.hpp"
#include "gatefold/policy/noise.hpp"
#include "gatefold/policy/policy.hpp"

namespace gatefold {

/// Extra inputs of a branch that draws numbers: the noise, and the extra inputs of the branch inside a Dropout, or of
/// the gate of a Mixture whose experts draw numbers.
template <class E>
struct NoisyExtra {
  Noise noise{};  // empty: evaluation
  E branch{};

  /// This type, if the branch takes no trace.
  using WithoutTrace = NoisyExtra<gatefold::WithoutTrace<E>>;
  template <class Trace>
  static NoisyExtra with_trace(const WithoutTrace& rest, const Trace& trace) {
    return {rest.noise, gatefold::with_trace<E>(rest.branch, trace)};
  }
};

}  // namespace gatefold
