#include "bitwise/bitwise.hpp"

using namespace gatefold;
using namespace gatefold::bitwise;

namespace {

constexpr Index length = 16;

/// Gates whose items meet within their sequence.
template <class F>
void each_gate(F&& f) {
  using Similar = SimilarityAware<SoftmaxTopK>;
  f("TokenSimilarity", Similar{.scores = {.experts = experts}});
  f("TokenSimilarity, both ways, learned metric",
    Similar{.scores = {.experts = experts}, .mixing = {.tau = 2, .causal = false, .learned_metric = true}});
  f("TokenSimilarity, only confident", Similar{.scores = {.experts = experts}, .mixing = {.only_confident = true}});
  f("ExpertChoice", SoftmaxExpertChoice{.scores = {.experts = experts}});
  f("SoftMoe", SoftMoe{.count = experts, .slots = 3});
  f("SoftMoe, reference", [] {
    SoftMoe gate = SoftMoe::reference();
    gate.count = experts;
    return gate;
  }());
}

}  // namespace

TEST_CASE_TEMPLATE("gates of sequences: any threads", T, float, double) {
  each_gate([](const std::string& name, const auto& gate) {
    CAPTURE(name);
    on_any_threads<T>(layer_of(gate), 24, true, {.length = 8, .padding = true});
    on_any_threads<T>(layer_of(gate), 300, true);
    on_any_threads<T>(layer_of(gate), 1024, false, {.length = 128});
  });
}

TEST_CASE_TEMPLATE("gates of sequences: a sequence alone and in any batch", T, float, double) {
  each_gate([](const std::string& name, const auto& gate) {
    CAPTURE(name);
    in_any_batch<T>(layer_of(gate), {.length = length}, length);
    in_any_batch<T>(layer_of(gate), {.length = length, .padding = true}, length);
  });
}

TEST_CASE_TEMPLATE("TokenSimilarity, causal: the bits of items do not depend on later ones", T, float, double) {
  for (const bool only_confident : {false, true}) {
    const SimilarityAware<SoftmaxTopK> gate{.scores = {.experts = experts}, .mixing = {.only_confident = only_confident}};
    without_later_items<T>(layer_of(gate));
  }
}
