#include "pairwise/pairwise.hpp"

namespace gatefold::pairwise {

GATEFOLD_PAIRWISE(Cosine, Similar, Scheduled, Plain, LinearMap)
GATEFOLD_PAIRWISE(OneMap, Alone, Best, HeavyBall, LinearMap)
GATEFOLD_PAIRWISE(Patch, Attending, Balanced, Adam, LinearMap)
GATEFOLD_PAIRWISE(FrozenLinear, Similar, Choosing, RmsProp, LinearMap)
GATEFOLD_PAIRWISE(Jittered, Attending, Limited, AdamThenHeavyBall, LinearMap)
GATEFOLD_PAIRWISE(Patch, Similar, All, Robust, LinearMap)
GATEFOLD_PAIRWISE(Jittered, Alone, NoisyBestK, Nesterov, LinearMap)
GATEFOLD_PAIRWISE(OneMap, Attending, NoisyBest, TimeVarying, LinearMap)
GATEFOLD_PAIRWISE(FrozenLinear, Alone, Scheduled, ScheduledRestart, LinearMap)
GATEFOLD_PAIRWISE(Patch, Alone, Choosing, SharpnessAware, LinearMap)
GATEFOLD_PAIRWISE(Cosine, Alone, Balanced, ComplexMomentum, LinearMap)
GATEFOLD_PAIRWISE(OneMap, Similar, NoisyBestK, ZeroOrderHold, LinearMap)

}  // namespace gatefold::pairwise
