#pragma once

#include "gatefold/core/types.hpp"
#include "gatefold/update/scheduled_momentum.hpp"

namespace gatefold::update {

/// A schedule of momentum that grows from 0 towards 1 with depth.
///
///     μ_t = (t − 1) / (t + 2),   t = 1 in the first layer                                               (1)
///
/// Source: paper 001, App. E.1 (time-varying momentum), there with γ = 1.
struct GrowingMu {
  double mu(Index t) const { return static_cast<double>(t - 1) / static_cast<double>(t + 2); }
};

/// Heavy ball with the momentum of GrowingMu, which grows with depth: `TimeVarying{.gamma = 1}`.
using TimeVarying = ScheduledMomentum<GrowingMu>;

}  // namespace gatefold::update
