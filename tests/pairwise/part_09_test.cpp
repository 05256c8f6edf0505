#include "pairwise/pairwise.hpp"

namespace gatefold::pairwise {

GATEFOLD_PAIRWISE(FrozenLinear, Attending, NoisyBest, Robust, Mixed)
GATEFOLD_PAIRWISE(OneMap, Alone, Best, Nesterov, Mixed)
GATEFOLD_PAIRWISE(FrozenLinear, Alone, Choosing, TimeVarying, Mixed)
GATEFOLD_PAIRWISE(FrozenLinear, Attending, Limited, ScheduledRestart, Mixed)
GATEFOLD_PAIRWISE(Jittered, Similar, All, SharpnessAware, Mixed)
GATEFOLD_PAIRWISE(Patch, Attending, Limited, ComplexMomentum, Mixed)
GATEFOLD_PAIRWISE(Patch, Alone, Balanced, ZeroOrderHold, Mixed)
GATEFOLD_PAIRWISE(Jittered, Attending, Best, LearnedHeavyBall, Mixed)
GATEFOLD_PAIRWISE(OneMap, Attending, Balanced, Plain, BesideShared)
GATEFOLD_PAIRWISE(Patch, Similar, All, HeavyBall, BesideShared)
GATEFOLD_PAIRWISE(FrozenLinear, Alone, NoisyBestK, Adam, BesideShared)
GATEFOLD_PAIRWISE(Jittered, Alone, Choosing, RmsProp, BesideShared)

}  // namespace gatefold::pairwise
