#include "pairwise/pairwise.hpp"

namespace gatefold::pairwise {

GATEFOLD_PAIRWISE(Jittered, Similar, NoisyBest, LearnedHeavyBall, LinearMap)
GATEFOLD_PAIRWISE(FrozenLinear, Attending, Best, Plain, TwoLayers)
GATEFOLD_PAIRWISE(Cosine, Attending, All, HeavyBall, TwoLayers)
GATEFOLD_PAIRWISE(OneMap, Alone, Limited, Adam, TwoLayers)
GATEFOLD_PAIRWISE(Patch, Alone, NoisyBest, RmsProp, TwoLayers)
GATEFOLD_PAIRWISE(Jittered, Similar, Balanced, AdamThenHeavyBall, TwoLayers)
GATEFOLD_PAIRWISE(Cosine, Attending, Choosing, Robust, TwoLayers)
GATEFOLD_PAIRWISE(Patch, Attending, Scheduled, Nesterov, TwoLayers)
GATEFOLD_PAIRWISE(FrozenLinear, Attending, NoisyBestK, TimeVarying, TwoLayers)
GATEFOLD_PAIRWISE(Patch, Similar, Limited, ScheduledRestart, TwoLayers)
GATEFOLD_PAIRWISE(Jittered, Similar, Best, SharpnessAware, TwoLayers)
GATEFOLD_PAIRWISE(FrozenLinear, Attending, All, ComplexMomentum, TwoLayers)

}  // namespace gatefold::pairwise
