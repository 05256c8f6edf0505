#include "gates.hpp"

namespace compose {

void similarity_aware(const Batch& batch, std::vector<Row>& rows) {
  const Options& o = batch.options;
  using Gate = SimilarityAware<SoftmaxTopK>;
  Extra<Gate, float, Cpu> extra;
  extra.mixing.length = batch.length();
  // Unnormalised patches have norms of about the root of their size. Only a tau of that order lets them mix.
  add_rows(batch, rows, "SimilarityAware<SoftmaxTopK>",
           Gate{.scores = {.experts = o.experts},
                .mixing = {.tau = double(batch.dim()), .causal = false},
                .selection = {.k = o.k}},
           extra);
}

}  // namespace compose
