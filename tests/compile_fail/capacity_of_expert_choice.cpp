// expect: gatefold: Capacity needs a selection with picks in the order of the items
#include <gatefold/gatefold.hpp>

using namespace gatefold;

int main() {
#ifdef GATEFOLD_FAIL
  Capacity<ExpertChoice>{}.validate_options(2);
#else
  Capacity<TopK>{}.validate_options(2);
#endif
}
