#include "gates.hpp"

namespace compose {

void gshard(const Batch& batch, std::vector<Row>& rows) {
  GShardTop2 gate = published::gshard({.experts = batch.options.experts});
  gate.selection.selection.k = batch.options.k;
  add_rows(batch, rows, "GShardTop2", gate);
}

}  // namespace compose
