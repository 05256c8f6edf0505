// expect: gatefold: an AttentionAware gate in an ExpertParallel needs scores without extra
#include <gatefold/gatefold.hpp>

#include "gatefold/distributed/expert_parallel.hpp"

using namespace gatefold;

#ifdef GATEFOLD_FAIL
using Gate = ComposedGate<Jitter<LinearScores>, AttentionPosterior, TopK>;
#else
using Gate = ComposedGate<Jitter<LinearScores>, TokenSimilarity, TopK>;
#endif

void run(dist::Shard<dist::Alone>& shard, Cpu::Context& ctx) {
  const dist::ExpertParallel branch{Mixture{Gate{.scores = {{.experts = 4}}}, Linear{.model_dim = 8}}, &shard};
  const auto params = init_params<float, Cpu>(branch, ctx, Seed{1});
  const Tensor<float, 2, Cpu> x(2, 8);
  Tensor<float, 2, Cpu> u(2, 8);
  Saved<std::remove_const_t<decltype(branch)>, float, Cpu> saved;
  branch.forward(ctx, params, x, u, saved);
}
