#pragma once

#include "gatefold/attention/attention_trace.hpp"
#include "gatefold/policy/noise.hpp"
#include "gatefold/policy/policy.hpp"

namespace gatefold {

/// Extra inputs of a branch that draws numbers beside what it would take without: of a Dropout, those of the branch
/// inside, and of a Mixture whose experts draw, those of its gate.
template <class E>
struct NoisyExtra {
  Noise noise{};  // empty: evaluation
  E branch{};

  /// This type itself where the branch asks for no trace.
  using WithoutTrace = NoisyExtra<gatefold::WithoutTrace<E>>;
  template <class Trace>
  static NoisyExtra with_trace(const WithoutTrace& rest, const Trace& trace) {
    return {rest.noise, gatefold::with_trace<E>(rest.branch, trace)};
  }
};

}  // namespace gatefold
