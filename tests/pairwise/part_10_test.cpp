#include "pairwise/pairwise.hpp"

namespace gatefold::pairwise {

GATEFOLD_PAIRWISE(Cosine, Similar, Scheduled, AdamThenHeavyBall, BesideShared)
GATEFOLD_PAIRWISE(Cosine, Similar, NoisyBest, Robust, BesideShared)
GATEFOLD_PAIRWISE(Patch, Alone, Limited, Nesterov, BesideShared)
GATEFOLD_PAIRWISE(Cosine, Attending, Scheduled, TimeVarying, BesideShared)
GATEFOLD_PAIRWISE(Jittered, Alone, Best, ScheduledRestart, BesideShared)
GATEFOLD_PAIRWISE(OneMap, Similar, Limited, SharpnessAware, BesideShared)
GATEFOLD_PAIRWISE(OneMap, Attending, Choosing, ComplexMomentum, BesideShared)
GATEFOLD_PAIRWISE(Cosine, Similar, Balanced, ZeroOrderHold, BesideShared)
GATEFOLD_PAIRWISE(OneMap, Attending, Limited, LearnedHeavyBall, BesideShared)

}  // namespace gatefold::pairwise
