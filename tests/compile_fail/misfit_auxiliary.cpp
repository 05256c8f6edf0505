// expect: gatefold: validate of an auxiliary loss must be callable as validate\(experts\) const; see docs/reference/optional_members\.md
// Members that are named and cannot be called as their family asks.
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
