#include "gates.hpp"

namespace compose {

void xmoe(const Batch& batch, std::vector<Row>& rows) {
  const Options& o = batch.options;
  add_rows(batch, rows, "XMoe", XMoe{.scores = {.experts = o.experts}, .selection = {.k = o.k}});
}

}  // namespace compose
