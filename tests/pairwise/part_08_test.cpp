#include "pairwise/pairwise.hpp"

namespace gatefold::pairwise {

GATEFOLD_PAIRWISE(Jittered, Alone, NoisyBest, Nesterov, Transformed)
GATEFOLD_PAIRWISE(FrozenLinear, Similar, Best, TimeVarying, Transformed)
GATEFOLD_PAIRWISE(FrozenLinear, Similar, Balanced, ScheduledRestart, Transformed)
GATEFOLD_PAIRWISE(Cosine, Attending, Scheduled, SharpnessAware, Transformed)
GATEFOLD_PAIRWISE(FrozenLinear, Attending, Scheduled, ComplexMomentum, Transformed)
GATEFOLD_PAIRWISE(OneMap, Alone, NoisyBest, ZeroOrderHold, Transformed)
GATEFOLD_PAIRWISE(FrozenLinear, Attending, Limited, LearnedHeavyBall, Transformed)
GATEFOLD_PAIRWISE(Cosine, Attending, NoisyBest, Plain, Mixed)
GATEFOLD_PAIRWISE(Jittered, Alone, Balanced, HeavyBall, Mixed)
GATEFOLD_PAIRWISE(OneMap, Similar, Scheduled, Adam, Mixed)
GATEFOLD_PAIRWISE(FrozenLinear, Attending, NoisyBestK, RmsProp, Mixed)
GATEFOLD_PAIRWISE(Patch, Alone, All, AdamThenHeavyBall, Mixed)

}  // namespace gatefold::pairwise
