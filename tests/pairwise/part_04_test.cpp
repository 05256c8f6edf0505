#include "pairwise/pairwise.hpp"

namespace gatefold::pairwise {

GATEFOLD_PAIRWISE(Jittered, Similar, Choosing, ComplexMomentum, Gated)
GATEFOLD_PAIRWISE(FrozenLinear, Attending, Limited, ZeroOrderHold, Gated)
GATEFOLD_PAIRWISE(OneMap, Alone, Scheduled, LearnedHeavyBall, Gated)
GATEFOLD_PAIRWISE(Patch, Attending, Limited, Plain, Patches)
GATEFOLD_PAIRWISE(Jittered, Alone, Scheduled, HeavyBall, Patches)
GATEFOLD_PAIRWISE(FrozenLinear, Similar, All, Adam, Patches)
GATEFOLD_PAIRWISE(Cosine, Similar, Best, RmsProp, Patches)
GATEFOLD_PAIRWISE(OneMap, Alone, NoisyBest, AdamThenHeavyBall, Patches)
GATEFOLD_PAIRWISE(FrozenLinear, Similar, NoisyBestK, Robust, Patches)
GATEFOLD_PAIRWISE(FrozenLinear, Attending, Balanced, Nesterov, Patches)
GATEFOLD_PAIRWISE(Patch, Alone, Choosing, TimeVarying, Patches)
GATEFOLD_PAIRWISE(OneMap, Similar, Choosing, ScheduledRestart, Patches)

}  // namespace gatefold::pairwise
