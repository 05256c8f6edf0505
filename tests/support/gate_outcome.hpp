#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "gatefold/gate/auxiliary/auxiliary.hpp"
#include "support/pass.hpp"

namespace gatefold::support {

/// The outcome of a gate with probabilities and picks that the test chooses, and with random logits.
struct Outcome {
  std::unique_ptr<Cpu::Context> ctx = std::make_unique<Cpu::Context>(1);
  Tensor<double, 2, Cpu> logits, q;
  SparsePlan<double, Cpu> plan;
  std::vector<double> valid;

  /// @param picks  the expert of each pick; every item has the same number of picks
  Outcome(Tensor<double, 2, Cpu> probabilities, const std::vector<Index>& picks, std::vector<double> mask = {})
      : q(std::move(probabilities)), valid(std::move(mask)) {
    const Index items = q.extent(0), count = static_cast<Index>(picks.size());
    logits = uniform_tensor<double>(*ctx, Seed{8}, 2, items, q.extent(1));
    plan.resize(items, q.extent(1), count);
    for (Index p = 0; p < count; ++p) {
      plan.item(p) = p / (count / items);
      plan.expert(p) = picks[static_cast<std::size_t>(p)];
      plan.weight(p) = 1;
    }
    plan.build(*ctx);
  }
  bool is_valid(Index n) const { return valid.empty() || valid[static_cast<std::size_t>(n)] != 0; }
  GateOutcome<double, Cpu> view() const {
    GateOutcome<double, Cpu> a{logits, q, plan, {}};
    if (!valid.empty()) a.valid = valid;
    return a;
  }
  template <class Loss>
  double value(const Loss& loss) {
    Tensor<double, 1, Cpu> v(1);
    v(0) = 99;
    loss.template forward<double, Cpu>(*ctx, view(), v);
    return v(0);
  }
  /// Returns the gradients of logits and probabilities, plus 1, because `backward` adds them to tensors of ones.
  template <class Loss>
  std::pair<Tensor<double, 2, Cpu>, Tensor<double, 2, Cpu>> gradients(const Loss& loss) {
    auto dz = constant_tensor<double>(*ctx, 1, q.extent(0), q.extent(1)),
         dq = constant_tensor<double>(*ctx, 1, q.extent(0), q.extent(1));
    loss.template backward<double, Cpu>(*ctx, view(), {dz, dq, {}});
    return {std::move(dz), std::move(dq)};
  }
};

inline Outcome random_outcome(std::vector<double> mask = {}) {
  Cpu::Context ctx(1);
  Tensor<double, 2, Cpu> q(6, 4);
  fill_uniform(ctx, Seed{4}, 0, 1, q);
  return {std::move(q), {0, 1, 0, 2, 3, 0, 2, 1, 0, 3, 1, 3}, std::move(mask)};
}

}  // namespace gatefold::support
