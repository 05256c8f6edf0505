// expect: gatefold: validate of a mixing must be callable as validate\(params, items, extra\) const; see docs/reference/optional_members\.md
// expect: gatefold: rows of a mixing must be callable as rows\(z, q\) const, which returns f\(lanes, n\); see docs/reference/optional_members\.md
// expect: gatefold: rows_backward of a mixing must be callable as rows_backward\(q, dq, dz\) const, which returns f\(lanes, n\); see docs/reference/optional_members\.md
// Members with the right names that cannot be called with the arguments of their family.
#include <gatefold/gatefold.hpp>

using namespace gatefold;

struct Odd : Independent {
#ifdef GATEFOLD_FAIL
  void validate(Index) const {}
  void rows(Index) const {}
  void rows_backward(Index) const {}
#endif
};

int main() {
  Cpu::Context ctx;
  ComposedGate<LinearScores, Odd, TopK>{}.init<float, Cpu>(ctx, Seed{1});
}
