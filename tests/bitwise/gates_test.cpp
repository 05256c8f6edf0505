#include "bitwise/bitwise.hpp"

using namespace gatefold;
using namespace gatefold::bitwise;

// The tests made from tests/descriptors check gates of few experts.

TEST_CASE_TEMPLATE("Gates of 64 experts: threads and batch change no bits", T, float, double) {
  const SoftmaxTopK gate{.scores = {.experts = 64}, .selection = {.k = 1, .renormalise = false}};
  on_any_threads<T>(layer_of(gate), few, true);
  on_any_threads<T>(layer_of(gate), 1000, false);
  in_any_batch<T>(layer_of(gate));
}
