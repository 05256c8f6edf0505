#include "gates.hpp"

namespace compose {

void vmoe(const Batch& batch, std::vector<Row>& rows) {
  Extra<VMoe, float, Cpu> extra;
  extra.selection.random = Random{Seed{batch.options.seed}, 0};
  add_rows(batch, rows, "VMoe", published::vmoe({.experts = batch.options.experts, .k = batch.options.k}), extra);
}

}  // namespace compose
