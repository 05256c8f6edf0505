// expect: gatefold: Capacity limits a selection whose picks stand item by item
#include <gatefold/gatefold.hpp>

using namespace gatefold;

int main() {
#ifdef GATEFOLD_FAIL
  Capacity<ExpertChoice>{}.validate_options(2);
#else
  Capacity<TopK>{}.validate_options(2);
#endif
}
