// expect: gatefold: this selection reads ranks as logits \(ReluRouting\), so use it with the mixing Independent, for example ComposedGate<LinearScores, Independent, ReluRouting>
#include <gatefold/gatefold.hpp>

using namespace gatefold;

#ifndef GATEFOLD_FAIL
using Gate = ReMoe;
#else
using Gate = ComposedGate<LinearScores, TokenSimilarity, ReluRouting>;
#endif

int main() {
  const Gate gate{};
  return static_cast<int>(gate.selection.k) - 1;
}
