#include "gates.hpp"

namespace compose {

void attention_aware(const Batch& batch, std::vector<Row>& rows) {
  const Options& o = batch.options;
  using Gate = AttentionAware<SoftmaxTopK>;
  const Extra<Gate, float, Cpu> extra{{}, {batch.trace(), {}}, {}};
  add_rows(batch, rows, "AttentionAware<SoftmaxTopK>", Gate{.scores = {.experts = o.experts}, .selection = {.k = o.k}},
           extra);
}

}  // namespace compose
