#include "gates.hpp"

namespace compose {

void noisy_top_1(const Batch& batch, std::vector<Row>& rows) {
  Extra<SoftmaxNoisyTop1, float, Cpu> extra;
  extra.selection.random = Random{Seed{batch.options.seed}, 0};
  add_rows(batch, rows, "SoftmaxNoisyTop1", SoftmaxNoisyTop1{.scores = {.experts = batch.options.experts}}, extra);
}

}  // namespace compose
