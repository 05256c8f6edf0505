#include "gates.hpp"

namespace compose {

void vmoe_top_k(const Batch& batch, std::vector<Row>& rows) {
  const Options& o = batch.options;
  add_rows(batch, rows, "SoftmaxTopK, not renormalised",
           SoftmaxTopK{.scores = {.experts = o.experts}, .selection = {.k = o.k, .renormalise = false}});
}

}  // namespace compose
