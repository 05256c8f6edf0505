#include "gates.hpp"

namespace compose {

void switch_transformer(const Batch& batch, std::vector<Row>& rows) {
  Extra<Switch, float, Cpu> extra;
  extra.scores.random = Random{Seed{batch.options.seed}, 0};
  add_rows(batch, rows, "Switch", published::switch_transformer({.experts = batch.options.experts}), extra);
}

}  // namespace compose
