#include "gates.hpp"

namespace compose {

void hash(const Batch& batch, std::vector<Row>& rows) {
  const Options& o = batch.options;
  const Extra<HashGate, float, Cpu> extra{batch.ids.view()};
  add_rows(batch, rows, "HashGate", HashGate{.count = o.experts, .k = o.k}, extra);
}

}  // namespace compose
