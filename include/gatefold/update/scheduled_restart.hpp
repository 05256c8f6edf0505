#pragma once

#include "gatefold/core/error.hpp"
#include "gatefold/core/types.hpp"
#include "gatefold/update/scheduled_momentum.hpp"

namespace gatefold::update {

/// Growing momentum that falls back to 0 every few layers.
///
///     μ_t = r / (r + 3),   r = (t + offset) mod period,   t = 1 in the first layer                      (1)
///
/// Source: paper 001, App. E.4 (scheduled restart), there with period 3. It leaves open where t begins: with t = 1 in the
/// first layer the momenta are 1/4, 2/5, 0, 1/4, …, so that layers 3, 6, … forget what came before, and the first has
/// nothing to remember. `.offset = -1` begins with 0, which is GrowingMu restarted: 0, 1/4, 2/5, 0, ….
/// @throws ArgumentError unless period >= 1 and offset >= −1
struct RestartingMu {
  Index period = 3, offset = 0;

  double mu(Index t) const {
    const double r = static_cast<double>((t + offset) % period);
    return r / (r + 3);
  }
  void validate() const {
    expect(period >= 1, "ScheduledRestart", "period", "at least 1", period);
    expect(offset >= -1, "ScheduledRestart", "offset", "at least -1", offset);
  }
};

/// `ScheduledRestart{.schedule = {.period = 3}, .gamma = 1}`: ScheduledMomentum with (1).
using ScheduledRestart = ScheduledMomentum<RestartingMu>;

}  // namespace gatefold::update
