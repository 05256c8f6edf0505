#include "gates.hpp"

namespace compose {

void soft_moe(const Batch& batch, std::vector<Row>& rows) {
  const Options& o = batch.options;
  // As many slots per image as a sparse gate with k picks has.
  const Index slots = std::max<Index>(1, batch.length() * o.k / o.experts);
  add_rows(batch, rows, "SoftMoe", SoftMoe{.count = o.experts, .slots = slots},
           Extra<SoftMoe, float, Cpu>{.length = batch.length()});
}

}  // namespace compose
