// expect: gatefold: at of an Extra must be callable as at\(layer\) const, which returns its own type; see docs/reference/optional_members\.md
// expect: gatefold: without_auxiliary of an Extra must be callable as without_auxiliary\(\) const, which returns its own type; see docs/reference/optional_members\.md
// expect: gatefold: with_valid of an Extra must be callable as with_valid\(mask\) const, which returns its own type; see docs/reference/optional_members\.md
// expect: gatefold: set_trace of an ExtraGrad must be callable as set_trace\(trace\); see docs/reference/optional_members\.md
// Members with the right names, but with other arguments or another result than those of their family.
#include <gatefold/gatefold.hpp>

using namespace gatefold;

struct Given {
#ifdef GATEFOLD_FAIL
  Given at() const { return {}; }
  int without_auxiliary() const { return 0; }
  void with_valid(Index) const {}
  void set_trace() {}
#endif
};

int main() {
  Given given;
  at_layer(given, 1);
  without_auxiliary(given);
  with_valid(given, View<const float, 1, Cpu>());
  set_trace(given, AttentionTrace<float, Cpu>());
}
