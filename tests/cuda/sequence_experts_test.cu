// Experts on the device whose items are sequences or sets of patches.

#include <doctest/doctest.h>

#include "gatefold/gatefold.cuh"
#include "gatefold/papers/merged_transformer.hpp"
#include "support/parity_layers.hpp"

using namespace gatefold;
using namespace gatefold::test;

namespace {

constexpr Index length = 3;

template <class T, class E>
void check(const E& expert) {
  for (const Slots& slots : {Slots{{2, 0, 3}}, Slots{{0, 2, 1}, 3}, Slots{{0, 0}, 2}}) {
    Backends on;
    CAPTURE(slots.counts.size());
    expect_same_bank<T>(on, expert, slots);
  }
}

}  // namespace

TEST_CASE("cuda: experts of patches match the naive backend") {
  const PatchMlp<Cubic> mlp{.model_dim = 5, .patches = length, .filters = 6, .outputs = 2};
  const PatchCnn<Gelu> cnn{.model_dim = 5, .patches = length, .filters = 6, .outputs = 2, .bias = true};
  SUBCASE("PatchMlp") { check<double>(mlp); }
  SUBCASE("PatchMlp, weights per patch, bias") {
    PatchMlp<Cubic> own = mlp;
    own.equal_patches = false;
    own.bias = true;
    check<double>(own);
  }
  SUBCASE("PatchCnn") { check<double>(cnn); }
  SUBCASE("PatchCnn, float") { check<float>(cnn); }
#ifdef GATEFOLD_SLOW_TESTS
  SUBCASE("PatchMlp, float") { check<float>(mlp); }
#endif
}

TEST_CASE("cuda: experts of sequences match the naive backend") {
  const MultiHeadExpert heads{.model_dim = 6, .heads = 2, .length = length};
  SUBCASE("AttentionExpert") { check<double>(AttentionExpert{.model_dim = 7, .length = length, .outputs = 5}); }
  SUBCASE("AttentionExpert, factors") {
    check<double>(AttentionExpert{.model_dim = 7, .length = length, .outputs = 5, .key_dim = 3});
  }
  SUBCASE("MergedTransformer") {
    check<double>(MergedTransformer<Gelu>{.model_dim = 7, .length = length, .heads = 2, .filters = 6});
  }
  SUBCASE("MultiHeadExpert") { check<double>(heads); }
  SUBCASE("MultiHeadExpert, causal") {
    MultiHeadExpert causal = heads;
    causal.causal = true;
    check<double>(causal);
  }
#ifdef GATEFOLD_SLOW_TESTS
  SUBCASE("MultiHeadExpert, float") { check<float>(heads); }
  SUBCASE("AttentionExpert, float") { check<float>(AttentionExpert{.model_dim = 7, .length = length, .outputs = 5}); }
  SUBCASE("MergedTransformer, float") {
    check<float>(MergedTransformer<Gelu>{.model_dim = 7, .length = length, .heads = 2, .filters = 6});
  }
  SUBCASE("TransformerExpert, float") {
    check<float>(TransformerExpert<Silu>{.model_dim = 6, .hidden_dim = 5, .heads = 2, .length = length});
  }
#endif
  SUBCASE("TransformerExpert") {
    check<double>(TransformerExpert<Silu>{.model_dim = 6, .hidden_dim = 5, .heads = 2, .length = length});
  }
  SUBCASE("TransformerExpert, causal, longer than a warp") {
    Backends on;
    expect_same_bank<double>(on, TransformerExpert<Silu>{.model_dim = 4, .hidden_dim = 5, .length = 33, .causal = true},
                             {{1, 0, 1}});
  }
}
