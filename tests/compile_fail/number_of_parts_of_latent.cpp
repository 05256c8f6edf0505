// expect: gatefold: a LatentMixture takes a Mixture and the number of columns of the items: LatentMixture\{Mixture\{gate, expert\}, model_dim\}; see docs/how-to/extending\.md#branch
#include <gatefold/gatefold.hpp>

using namespace gatefold;

int main() {
  const SoftmaxDense gate{.scores = {.experts = 2}};
  const Linear linear{.model_dim = 2};
#ifndef GATEFOLD_FAIL
  const LatentMixture branch{Mixture{gate, linear}, 4};
#else
  const LatentMixture branch{gate, linear, 4};
#endif
  return static_cast<int>(branch.in_dim());
}
