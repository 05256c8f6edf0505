#include "bitwise/bitwise.hpp"

using namespace gatefold;
using namespace gatefold::bitwise;

// Experts of every kind are in the tests made of tests/descriptors; these are as wide as engines split.

TEST_CASE_TEMPLATE("wide experts: threads and batch change no bit", T, float, double) {
  const Mixture mixture{top_2, Mlp<Relu>{.model_dim = 300, .hidden_dim = 530}};
  on_any_threads<T>(mixture, 700, false);  // as many items of an expert as there are rows in more than one block
  in_any_batch<T>(mixture, {}, 1, {0, 100}, 512);
}
