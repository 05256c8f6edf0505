// expect: gatefold: a Capacity does not pass on the auxiliary loss of its selection: put the Capacity inside, GlobalBalance<Capacity<>>; see docs/how-to/routers\.md#balance-of-a-global-batch
#include <gatefold/gatefold.hpp>

using namespace gatefold;

#ifndef GATEFOLD_FAIL
using Selection = GlobalBalance<Capacity<TopK>>;
#else
using Selection = Capacity<GlobalBalance<TopK>>;
#endif

int main() {
  const Selection selection{};
  return static_cast<int>(selection.selection.selection.k) - 2;
}
