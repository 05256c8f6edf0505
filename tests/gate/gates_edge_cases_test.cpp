#include <doctest/doctest.h>

#include "support/every_gate.hpp"

using namespace gatefold;
using namespace gatefold::support;

GATEFOLD_EDGE_CASES(XMoe, SmoeDropout, SigmoidTopK, SoftmaxExpertChoice, SimilarityAware<SoftmaxTopK>,
                    AttentionAware<SoftmaxTopK>, HashGate, SoftMoe)
