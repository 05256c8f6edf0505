// expect: gatefold: this wrapper needs an optimizer with a learning rate \.lr \(instead of an InStages, wrap the optimizers inside it: InStages\{1, 2, optim::Clipped\{ffn, 1\.0\}, attention, fine\}\); see docs/how-to/extending_parts\.md#optimizer
#include <gatefold/gatefold.hpp>
#include <gatefold/papers/in_stages.hpp>

using namespace gatefold;

int main() {
  const InStages stages{1, 2, optim::AdamW{}, optim::AdamW{}, optim::AdamW{}};
#ifndef GATEFOLD_FAIL
  const InStages wrapped{1, 2, optim::Clipped{stages.ffn, 1.0}, optim::Scheduled{stages.attention, optim::Warmup{5}},
                         InGroups{is_weight, stages.fine, optim::AdamW{}}};
#else
  const InGroups groups{is_weight, stages, optim::AdamW{}};
  const optim::Clipped clipped{stages, 1.0};
  const optim::Scheduled scheduled{stages, optim::Warmup{5}};
#endif
}
