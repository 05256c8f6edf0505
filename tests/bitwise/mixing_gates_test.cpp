#include "bitwise/bitwise.hpp"

using namespace gatefold;
using namespace gatefold::bitwise;

TEST_CASE_TEMPLATE("causal TokenSimilarity: later items change no bit of earlier ones", T, float, double) {
  for (const bool only_confident : {false, true}) {
    const SimilarityAware<SoftmaxTopK> gate{.scores = {.experts = experts},
                                            .mixing = {.only_confident = only_confident}};
    without_later_items<T>(layer_of(gate));
  }
}
