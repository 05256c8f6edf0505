#pragma once

#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/routing/sparse_plan.hpp"

namespace gatefold::support {

struct Pick {
  Index item, expert;
  double weight = 1;
};

/// Returns a plan of the given picks.
template <class T>
SparsePlan<T, Cpu> plan_of(Cpu::Context& ctx, Index items, Index experts, const std::vector<Pick>& picks) {
  SparsePlan<T, Cpu> plan;
  plan.resize(items, experts, static_cast<Index>(picks.size()));
  for (std::size_t p = 0; p < picks.size(); ++p) {
    plan.item.data()[p] = picks[p].item;
    plan.expert.data()[p] = picks[p].expert;
    plan.weight.data()[p] = static_cast<T>(picks[p].weight);
  }
  plan.build(ctx);
  return plan;
}

}  // namespace gatefold::support
