#pragma once

#include "gatefold/update/scheduled_momentum.hpp"

namespace gatefold::update {

/// A schedule for the momentum coefficient μ_t of layer t. The coefficient grows, and returns to 0 every `period`
/// layers.
///
///     μ_t = r / (r + 3),   r = (t + offset) mod period,   t = 1 in the first layer                      (1)
///
/// Source: paper 001, App. E.4 (scheduled restart), with period 3. The paper prints t mod 3 and does not say at which
/// number t begins, but it restarts the schedule "after layer 3" of 6. The default offset −1 matches this: μ_t is 0,
/// 1/4, 2/5, 0, …, and layers 4, 7, … discard the previous momentum. With `.offset = 0`, μ_t is 1/4, 2/5, 0, 1/4, …,
/// and layers 3, 6, … discard the previous momentum.
/// @throws ArgumentError unless period >= 1 and offset >= −1
struct RestartingMu {
  Index period = 3, offset = -1;

  double mu(Index t) const {
    const double r = static_cast<double>((t + offset) % period);
    return r / (r + 3);
  }
  void validate() const {
    expect(period >= 1, "ScheduledRestart", "period", "at least 1", period);
    expect(offset >= -1, "ScheduledRestart", "offset", "at least -1", offset);
  }
};

/// An update rule with heavy-ball momentum whose coefficient grows with the layers and returns to 0 every `period`
/// layers (RestartingMu), for example ScheduledRestart{.schedule = {.period = 3}, .gamma = 1}.
using ScheduledRestart = ScheduledMomentum<RestartingMu>;

}  // namespace gatefold::update
