#include "gates.hpp"

namespace compose {

void similarity_aware(const Batch& batch, std::vector<Row>& rows) {
  const Options& o = batch.options;
  using Gate = SimilarityAware<SoftmaxTopK>;
  Extra<Gate, float, Cpu> extra;
  extra.mixing.length = batch.length();
  // The norm of an unnormalised patch is about the square root of its number of values. SimilarityAware mixes patches
  // only if its temperature tau is about as large as the square of this norm.
  add_rows(batch, rows, "SimilarityAware<SoftmaxTopK>",
           Gate{.scores = {.experts = o.experts},
                .mixing = {.tau = double(batch.dim()), .causal = false},
                .selection = {.k = o.k}},
           extra);
}

}  // namespace compose
