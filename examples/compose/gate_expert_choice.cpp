#include "gates.hpp"

namespace compose {

void expert_choice(const Batch& batch, std::vector<Row>& rows) {
  const Options& o = batch.options;
  Extra<SoftmaxExpertChoice, float, Cpu> extra;
  extra.selection.length = batch.length();
  add_rows(batch, rows, "SoftmaxExpertChoice",
           SoftmaxExpertChoice{.scores = {.experts = o.experts}, .selection = {.factor = double(o.k)}}, extra);
}

}  // namespace compose
