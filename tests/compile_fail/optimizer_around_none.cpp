// expect: gatefold: the first argument of this wrapper must be an optimizer \(gatefold::optim\): optim::Clipped\{optim::AdamW\{\}, 1\.0\}, optim::Scheduled\{optim::AdamW\{\}, schedule\}; see docs/how-to/extending_parts\.md#optimizer
#include <gatefold/gatefold.hpp>

using namespace gatefold;

int main() {
#ifndef GATEFOLD_FAIL
  const optim::Clipped plain{optim::Sgd{}}, clipped{optim::Sgd{}, 1.0};
  const optim::Scheduled scheduled{optim::Sgd{}, optim::WarmupCosine{}};
#else
  const optim::Clipped rule{update::Adam{}}, swapped{1.0, optim::Sgd{}};
  const optim::Scheduled scheduled{optim::WarmupCosine{}, optim::Sgd{}};
#endif
}
