#include "gates.hpp"

namespace compose {

void sigmoid_top_k(const Batch& batch, std::vector<Row>& rows) {
  const Options& o = batch.options;
  add_rows(batch, rows, "SigmoidTopK", SigmoidTopK{.scores = {.experts = o.experts}, .selection = {.k = o.k}});
}

}  // namespace compose
