// expect: gatefold: validate of an auxiliary loss must be callable as validate\(experts\) const; see docs/reference/optional_members\.md
// Members with the right names that cannot be called with the arguments of their family.
#include <gatefold/gatefold.hpp>

using namespace gatefold;

struct Odd : Balance {
#ifdef GATEFOLD_FAIL
  void validate() const {}
#endif
};

int main() {
  Cpu::Context ctx;
  WithAuxiliary<SoftmaxTopK, Odd>{}.init<float, Cpu>(ctx, Seed{1});
}
