// expect: gatefold: SimilarityAware, AttentionAware and WithMixing take a ComposedGate \(scores, mixing, selection\) and replace its mixing; this gate is not a ComposedGate; see docs/how-to/extending_parts\.md#parts-of-a-gate
#include <gatefold/gatefold.hpp>

using namespace gatefold;

#ifndef GATEFOLD_FAIL
using Gate = SoftmaxTopK;
#else
using Gate = HashGate;
#endif

int main() { SimilarityAware<Gate> gate; }
