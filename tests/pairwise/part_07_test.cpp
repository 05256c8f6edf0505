#include "pairwise/pairwise.hpp"

namespace gatefold::pairwise {

GATEFOLD_PAIRWISE(FrozenLinear, Alone, All, TimeVarying, Attended)
GATEFOLD_PAIRWISE(Cosine, Alone, All, ScheduledRestart, Attended)
GATEFOLD_PAIRWISE(FrozenLinear, Alone, Scheduled, SharpnessAware, Attended)
GATEFOLD_PAIRWISE(Cosine, Attending, NoisyBestK, ComplexMomentum, Attended)
GATEFOLD_PAIRWISE(FrozenLinear, Similar, Best, ZeroOrderHold, Attended)
GATEFOLD_PAIRWISE(OneMap, Similar, All, LearnedHeavyBall, Attended)
GATEFOLD_PAIRWISE(Cosine, Attending, All, Plain, Transformed)
GATEFOLD_PAIRWISE(Patch, Similar, NoisyBestK, HeavyBall, Transformed)
GATEFOLD_PAIRWISE(OneMap, Alone, Choosing, Adam, Transformed)
GATEFOLD_PAIRWISE(Jittered, Attending, Balanced, RmsProp, Transformed)
GATEFOLD_PAIRWISE(FrozenLinear, Attending, Choosing, AdamThenHeavyBall, Transformed)
GATEFOLD_PAIRWISE(Jittered, Attending, Limited, Robust, Transformed)

}  // namespace gatefold::pairwise
