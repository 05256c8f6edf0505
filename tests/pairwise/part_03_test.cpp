#include "pairwise/pairwise.hpp"

namespace gatefold::pairwise {

GATEFOLD_PAIRWISE(Jittered, Alone, All, ZeroOrderHold, TwoLayers)
GATEFOLD_PAIRWISE(FrozenLinear, Attending, Balanced, LearnedHeavyBall, TwoLayers)
GATEFOLD_PAIRWISE(OneMap, Alone, Choosing, Plain, Gated)
GATEFOLD_PAIRWISE(FrozenLinear, Similar, NoisyBest, HeavyBall, Gated)
GATEFOLD_PAIRWISE(Cosine, Similar, Best, Adam, Gated)
GATEFOLD_PAIRWISE(Jittered, Attending, Scheduled, RmsProp, Gated)
GATEFOLD_PAIRWISE(Patch, Alone, NoisyBestK, AdamThenHeavyBall, Gated)
GATEFOLD_PAIRWISE(OneMap, Alone, Balanced, Robust, Gated)
GATEFOLD_PAIRWISE(OneMap, Similar, All, Nesterov, Gated)
GATEFOLD_PAIRWISE(Cosine, Similar, Limited, TimeVarying, Gated)
GATEFOLD_PAIRWISE(Cosine, Attending, NoisyBestK, ScheduledRestart, Gated)
GATEFOLD_PAIRWISE(Cosine, Attending, NoisyBest, SharpnessAware, Gated)

}  // namespace gatefold::pairwise
