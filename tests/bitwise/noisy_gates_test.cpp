#include "bitwise/bitwise.hpp"

using namespace gatefold;
using namespace gatefold::bitwise;

namespace {

/// Gates that look at one item at a time and draw noise, or have losses of the whole batch.
template <class F>
void each_gate(F&& f) {
  f("NoisyTop1", SoftmaxNoisyTop1{.scores = {.experts = experts}});
  f("NoisyTop1, Gumbel, noisy weight",
    ComposedGate<LinearScores, Independent, NoisyTop1<GumbelNoise>>{.scores = {.experts = experts},
                                                                    .selection = {.noisy_weight = true}});
  f("NoisyTopK", SoftmaxNoisyTopK{.scores = {.experts = experts}, .selection = {.initial = Initial::normal(0.3)}});
  f("NoisyTopK of V-MoE", SoftmaxNoisyTopK{.scores = {.experts = experts}, .selection = NoisyTopK::vmoe()});
  f("Jitter",
    ComposedGate<Jitter<LinearScores>, Independent, TopK>{.scores = {.scores = {.experts = experts}, .epsilon = 0.2}});
  f("auxiliary losses", WithAuxiliary<SoftmaxTopK, Balance, ZLoss>{.scores = {.experts = experts}, .selection = {.k = 2}});
}

}  // namespace

TEST_CASE_TEMPLATE("gates with noise or losses: any threads", T, float, double) {
  each_gate([](const std::string& name, const auto& gate) {
    CAPTURE(name);
    on_any_threads<T>(layer_of(gate), few, true, {.noise = true});
    on_any_threads<T>(layer_of(gate), 1000, false, {.noise = true, .padding = true});
  });
}

TEST_CASE_TEMPLATE("gates with noise or losses: alone and in any batch", T, float, double) {
  each_gate([](const std::string& name, const auto& gate) {
    CAPTURE(name);
    in_any_batch<T>(layer_of(gate));
    in_any_batch<T>(layer_of(gate), {.noise = true}, 1, {0});  // an item's noise goes by its place in the batch
  });
}
