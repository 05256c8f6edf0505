#include "pairwise/pairwise.hpp"

namespace gatefold::pairwise {

GATEFOLD_PAIRWISE(Jittered, Similar, NoisyBest, ScheduledRestart, Convolved)
GATEFOLD_PAIRWISE(OneMap, Attending, Balanced, SharpnessAware, Convolved)
GATEFOLD_PAIRWISE(OneMap, Attending, NoisyBest, ComplexMomentum, Convolved)
GATEFOLD_PAIRWISE(Cosine, Attending, Choosing, ZeroOrderHold, Convolved)
GATEFOLD_PAIRWISE(Patch, Similar, Choosing, LearnedHeavyBall, Convolved)
GATEFOLD_PAIRWISE(OneMap, Alone, NoisyBestK, Plain, Attended)
GATEFOLD_PAIRWISE(FrozenLinear, Attending, Choosing, HeavyBall, Attended)
GATEFOLD_PAIRWISE(Jittered, Similar, NoisyBest, Adam, Attended)
GATEFOLD_PAIRWISE(Cosine, Attending, Limited, RmsProp, Attended)
GATEFOLD_PAIRWISE(FrozenLinear, Alone, Scheduled, AdamThenHeavyBall, Attended)
GATEFOLD_PAIRWISE(Patch, Attending, Best, Robust, Attended)
GATEFOLD_PAIRWISE(Cosine, Similar, Balanced, Nesterov, Attended)

}  // namespace gatefold::pairwise
