#pragma once

#include "gatefold/update/scheduled_momentum.hpp"

namespace gatefold::update {

/// A schedule for the momentum coefficient μ_t of layer t. It grows from 0 in the first layer towards 1.
///
///     μ_t = (t − 1) / (t + 2),   t = 1 in the first layer                                               (1)
///
/// Source: paper 001, App. E.1 (time-varying momentum), there with γ = 1.
struct GrowingMu {
  double mu(Index t) const { return static_cast<double>(t - 1) / static_cast<double>(t + 2); }
};

/// An update rule with heavy-ball momentum whose coefficient grows from layer to layer (GrowingMu), for example
/// TimeVarying{.gamma = 1}.
using TimeVarying = ScheduledMomentum<GrowingMu>;

}  // namespace gatefold::update
