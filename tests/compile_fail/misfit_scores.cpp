// expect: gatefold: validate of scores must be callable as validate\(params\) const; see docs/reference/optional_members\.md
// expect: gatefold: forward_rows of scores must be callable as forward_rows\(ctx, params, x, z, f\) const; see docs/reference/optional_members\.md
// expect: gatefold: with_experts of a policy must be callable as with_experts\(experts\) const, which returns its own type; see docs/reference/optional_members\.md
// expect: gatefold: experts of a policy must be callable as experts\(\) const; see docs/reference/optional_members\.md
// Members with the right names, but with other arguments or another result than those of their family.
#include <gatefold/gatefold.hpp>

using namespace gatefold;

struct Odd : LinearScores {
#ifdef GATEFOLD_FAIL
  void validate() const {}
  void forward_rows(Index) const {}
  void with_experts(Index) const {}
  Index experts(Index) const { return 2; }
#endif
  Odd with_model_dim(Index width) const { return {gatefold::with_model_dim(LinearScores(*this), width)}; }
};

int main() {
  Cpu::Context ctx;
  ComposedGate<Odd, Independent, TopK>{}.init<float, Cpu>(ctx, Seed{1});
}
