#include "gates.hpp"

namespace compose {

void softmax_dense(const Batch& batch, std::vector<Row>& rows) {
  add_rows(batch, rows, "SoftmaxDense", SoftmaxDense{.scores = {.experts = batch.options.experts}});
}

}  // namespace compose
