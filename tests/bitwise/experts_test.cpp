#include "bitwise/bitwise.hpp"

using namespace gatefold;
using namespace gatefold::bitwise;

// The tests made from tests/descriptors check experts of every kind. The experts here are so wide that engines divide
// them among threads.

TEST_CASE_TEMPLATE("wide experts: threads and batch change no bit", T, float, double) {
  const Mixture mixture{top_2, Mlp<Relu>{.model_dim = 300, .hidden_dim = 530}};
  on_any_threads<T>(mixture, 700, false);  // an expert has more items than one block has rows
  in_any_batch<T>(mixture, {}, 1, {0, 100}, 512);
}
