#include "pairwise/pairwise.hpp"

namespace gatefold::pairwise {

GATEFOLD_PAIRWISE(FrozenLinear, Alone, NoisyBestK, SharpnessAware, Patches)
GATEFOLD_PAIRWISE(Patch, Attending, Best, ComplexMomentum, Patches)
GATEFOLD_PAIRWISE(Patch, Similar, Scheduled, ZeroOrderHold, Patches)
GATEFOLD_PAIRWISE(Cosine, Similar, NoisyBestK, LearnedHeavyBall, Patches)
GATEFOLD_PAIRWISE(Jittered, Attending, Balanced, Plain, Convolved)
GATEFOLD_PAIRWISE(Patch, Similar, Limited, HeavyBall, Convolved)
GATEFOLD_PAIRWISE(Jittered, Alone, NoisyBestK, Adam, Convolved)
GATEFOLD_PAIRWISE(OneMap, Alone, All, RmsProp, Convolved)
GATEFOLD_PAIRWISE(Cosine, Similar, Best, AdamThenHeavyBall, Convolved)
GATEFOLD_PAIRWISE(Jittered, Attending, Scheduled, Robust, Convolved)
GATEFOLD_PAIRWISE(FrozenLinear, Attending, Choosing, Nesterov, Convolved)
GATEFOLD_PAIRWISE(Jittered, Attending, Balanced, TimeVarying, Convolved)

}  // namespace gatefold::pairwise
