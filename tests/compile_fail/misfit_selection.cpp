// expect: gatefold: validate of a selection must be callable as validate\(params, items, extra\) const \(checks of options only: validate_options\(experts\) const\); see docs/reference/optional_members\.md
// expect: gatefold: validate_options of a selection must be callable as validate_options\(experts\) const; see docs/reference/optional_members\.md
// expect: gatefold: noisy of a selection must be callable as noisy\(saved\) const, which returns NoisyRank<const T, B>; see docs/reference/optional_members\.md
// expect: gatefold: rows of a selection must be callable as rows\(candidates, plan, extra\) const, which returns f\(lanes, n\) with choose\(lanes, n\) and weigh\(lanes, n\); see docs/reference/optional_members\.md
// expect: gatefold: rows_backward of a selection must be callable as rows_backward\(candidates, plan, dplan, dq, extra\) const, which returns f\(lanes, n\); see docs/reference/optional_members\.md
// expect: gatefold: complete_picks of a selection must be static constexpr bool; see docs/reference/optional_members\.md
// expect: gatefold: picks_by_item of a selection must be static constexpr bool; see docs/reference/optional_members\.md
// expect: gatefold: shows_noise of a selection must be static constexpr bool; see docs/reference/optional_members\.md
// Members with the right names: functions that cannot be called with the arguments of their family, and flags that are
// not static constexpr.
#include <gatefold/gatefold.hpp>

using namespace gatefold;

struct Odd : TopK {
#ifdef GATEFOLD_FAIL
  bool complete_picks = true, picks_by_item = true, shows_noise = false;
  void validate(Index) const {}
  void validate_options() const {}
  void noisy() const {}
  void rows(Index) const {}
  void rows_backward(Index) const {}
#endif
};

int main() {
  Cpu::Context ctx;
  ComposedGate<LinearScores, Independent, Odd>{}.init<float, Cpu>(ctx, Seed{1});
}
