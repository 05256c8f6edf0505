// expect: gatefold: Zero steps the rows of a tensor that belong to one shard, so optim::Averaged goes around it, Averaged\{Zero\{optimizer, &shard\}\}, and optim::ExpertRates does not go with it; see docs/how-to/distributed\.md
#include <gatefold/gatefold.hpp>

#include "gatefold/distributed.hpp"

using namespace gatefold;

void use(dist::Shard<dist::Alone>& shard) {
#ifndef GATEFOLD_FAIL
  const optim::Averaged around{dist::Zero{optim::AdamW{}, &shard}, 0.9};
#else
  const dist::Zero inside{optim::Averaged{optim::AdamW{}, 0.9}, &shard};
#endif
}
