// expect: gatefold: Capacity limits a selection whose picks stand item by item
#include <gatefold/gatefold.hpp>

using namespace gatefold;

int main() {
#ifdef GATEFOLD_FAIL
  Capacity<ExpertChoice>{}.validate(2);
#else
  Capacity<TopK>{}.validate(2);
#endif
}
