#include "bitwise/bitwise.hpp"

using namespace gatefold;
using namespace gatefold::bitwise;

// The tests made from tests/descriptors check gates of few experts.

TEST_CASE_TEMPLATE("64 experts: threads and batch change no bit of gates", T, float, double) {
  const SoftmaxTopK gate{.scores = {.experts = 64}, .selection = {.k = 1, .renormalise = false}};
  on_any_threads<T>(layer_of(gate), few, true);
  on_any_threads<T>(layer_of(gate), 1000, false);
  in_any_batch<T>(layer_of(gate));
}
