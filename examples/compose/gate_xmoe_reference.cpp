#include "gates.hpp"

namespace compose {

void xmoe_reference(const Batch& batch, std::vector<Row>& rows) {
  XMoe gate{.scores = CosineScores::reference(), .selection = {.k = batch.options.k}};
  gate.scores.experts = batch.options.experts;
  add_rows(batch, rows, "XMoe, reference", gate);
}

}  // namespace compose
