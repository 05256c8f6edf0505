#include "gates.hpp"

namespace compose {

void soft_moe(const Batch& batch, std::vector<Row>& rows) {
  const Options& o = batch.options;
  // Gives each image as many slots as a sparse gate with k picks does.
  const Index slots = std::max<Index>(1, batch.length() * o.k / o.experts);
  add_rows(batch, rows, "SoftMoe", SoftMoe{.count = o.experts, .slots = slots},
           Extra<SoftMoe, float, Cpu>{.length = batch.length()});
}

}  // namespace compose
