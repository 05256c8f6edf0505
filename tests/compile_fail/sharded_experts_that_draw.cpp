// expect: gatefold: experts that draw numbers draw them by item, and ExpertParallel moves items
#include <gatefold/gatefold.hpp>

#include "gatefold/dist/expert_parallel.hpp"

using namespace gatefold;

const Mlp<Gelu> mlp{.model_dim = 8, .hidden_dim = 16};
#ifdef GATEFOLD_FAIL
const HiddenDropout expert{0.1, mlp};
#else
const Mlp<Gelu> expert = mlp;
#endif

auto sharded(dist::Shard<dist::Alone>& shard) {
  return dist::ExpertParallel{Mixture{SoftmaxTopK{.scores = {.experts = 4}}, expert}, &shard};
}
