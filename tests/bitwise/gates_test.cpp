#include "bitwise/bitwise.hpp"

using namespace gatefold;
using namespace gatefold::bitwise;

namespace {

/// Gates that look at one item at a time.
template <class F>
void each_gate(F&& f) {
  f("TopK", top_2);
  f("TopK, not renormalised", SoftmaxTopK{.scores = {.experts = 64}, .selection = {.k = 1, .renormalise = false}});
  f("Dense", SoftmaxDense{.scores = {.experts = experts}});
  f("XMoe", XMoe{.scores = {.experts = experts}});
  f("SmoeDropout", SmoeDropout{.scores = {.scores = {.experts = experts}}});
  f("SigmoidTopK", SigmoidTopK{.scores = {.experts = experts}});
  f("hash", HashGate{.count = experts, .k = 2});
}

}  // namespace

TEST_CASE_TEMPLATE("gates, one item at a time: any threads", T, float, double) {
  each_gate([](const std::string& name, const auto& gate) {
    CAPTURE(name);
    on_any_threads<T>(layer_of(gate), few, true);
    on_any_threads<T>(layer_of(gate), 1000, false);
  });
}

TEST_CASE_TEMPLATE("gates, one item at a time: alone and in any batch", T, float, double) {
  each_gate([](const std::string& name, const auto& gate) {
    CAPTURE(name);
    in_any_batch<T>(layer_of(gate));
  });
}
