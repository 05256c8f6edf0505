// expect: gatefold: GlobalBalance takes a selection without an auxiliary loss of its own, for example TopK; see docs/how-to/routers\.md#balance-of-a-global-batch
#include <gatefold/gatefold.hpp>

using namespace gatefold;

#ifndef GATEFOLD_FAIL
using Selection = GlobalBalance<TopK>;
#else
using Selection = GlobalBalance<ReluRouting>;
#endif

int main() {
  const Selection selection{};
  return static_cast<int>(selection.selection.k) - 2;
}
