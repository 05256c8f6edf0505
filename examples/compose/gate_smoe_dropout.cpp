#include "gates.hpp"

namespace compose {

void smoe_dropout(const Batch& batch, std::vector<Row>& rows) {
  const Options& o = batch.options;
  add_rows(batch, rows, "SmoeDropout",
           SmoeDropout{.scores = {.scores = {.experts = o.experts}}, .selection = {.k = o.k}});
}

}  // namespace compose
