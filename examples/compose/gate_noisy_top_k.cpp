#include "gates.hpp"

namespace compose {

void noisy_top_k(const Batch& batch, std::vector<Row>& rows) {
  const Options& o = batch.options;
  Extra<SoftmaxNoisyTopK, float, Cpu> extra;
  extra.selection.random = Random{Seed{o.seed}, 0};
  add_rows(batch, rows, "SoftmaxNoisyTopK", SoftmaxNoisyTopK{.scores = {.experts = o.experts}, .selection = {.k = o.k}},
           extra);
}

}  // namespace compose
