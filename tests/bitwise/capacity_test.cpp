#include "bitwise/bitwise.hpp"

using namespace gatefold;
using namespace gatefold::bitwise;

namespace {

/// Gates whose items compete for room.
template <class F>
void each_gate(F&& f) {
  f("VMoe", VMoe{.scores = {.experts = experts}, .selection = {.selection = {.k = 2}, .batch_priority = true}});
  f("Switch", Switch{.scores = {.scores = {.experts = experts}}, .selection = {.factor = 0.8}});
  f("GShardTop2", GShardTop2{.scores = {.experts = experts}, .selection = {.factor = 0.8, .multiple_of = 1}});
}

}  // namespace

TEST_CASE_TEMPLATE("gates with limited room: any threads", T, float, double) {
  each_gate([](const std::string& name, const auto& gate) {
    CAPTURE(name);
    on_any_threads<T>(layer_of(gate), few, true, {.noise = true});
    on_any_threads<T>(layer_of(gate), 2000, false, {.noise = true, .padding = true});
  });
}

TEST_CASE_TEMPLATE("gates with limited room: a group alone and in any batch", T, float, double) {
  each_gate([](const std::string& name, auto gate) {
    CAPTURE(name);
    gate.selection.group = 16;
    in_any_batch<T>(layer_of(gate), {}, 16);
  });
}
