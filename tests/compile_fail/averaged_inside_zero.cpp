// expect: gatefold: Zero steps only the rows of a tensor that belong to one shard: put optim::Averaged outside, Averaged\{Zero\{optimizer, &shard\}\}; optim::ExpertRates cannot be used with Zero; see docs/how-to/distributed\.md
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
