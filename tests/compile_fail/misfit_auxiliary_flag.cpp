// expect: gatefold: needs_picks_by_item of an auxiliary loss must be static constexpr bool; see docs/reference/optional_members\.md
// expect: gatefold: needs_noise of an auxiliary loss must be static constexpr bool; see docs/reference/optional_members\.md
// Flags with the right names that are not static constexpr.
#include <gatefold/gatefold.hpp>

using namespace gatefold;

struct Odd : Balance {
#ifdef GATEFOLD_FAIL
  bool needs_picks_by_item = true, needs_noise = false;
#endif
};

int main() {
  Cpu::Context ctx;
  WithAuxiliary<SoftmaxTopK, Odd>{}.init<float, Cpu>(ctx, Seed{1});
}
