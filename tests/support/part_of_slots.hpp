#pragma once

#include <string>
#include <vector>

#include "support/experts.hpp"

namespace gatefold::support {

/// Checks an expert whose first offset is not 0. This is the case in `Experts` (expert/experts.hpp), where slots of
/// other kinds of experts come first. Returns a sentence for each failure.
template <class T, class E>
std::vector<std::string> broken_for_later_slots(const E& expert) {
  std::vector<std::string> broken;
  Cpu::Context ctx(1);
  Bank<T, E> all(ctx, expert, {5}, 4, 1), later(ctx, expert, {5}, 4, 1);
  for (Index i = 0; i < 2 * all.dz.extent(1); ++i) all.dz.data()[i] = 0;
  for (Index i = 0; i < 2 * later.dz.extent(1); ++i) later.dz.data()[i] = T(quiet_nan);
  later.offsets[0] = 2;
  for (auto* bank : {&all, &later}) {
    bank->forward();
    bank->backward();
  }
  const auto of = [](const Tensor<T, 2, Cpu>& t, Index first, Index last) {
    auto rows = values(t);
    return std::vector<double>(rows.begin() + first * t.extent(1), rows.begin() + last * t.extent(1));
  };
  const auto untouched = [&](const Tensor<T, 2, Cpu>& t) {
    for (const double v : of(t, 0, 2))
      if (v != Bank<T, E>::sentinel) return false;
    return true;
  };
  if (!same_bits(of(all.z, 2, 5), of(later.z, 2, 5))) broken.push_back("forward depends on earlier slots");
  if (!untouched(later.z)) broken.push_back("forward writes slots of others");
  if (!same_bits(of(all.dslots, 2, 5), of(later.dslots, 2, 5))) broken.push_back("backward depends on earlier slots");
  if (!untouched(later.dslots)) broken.push_back("backward writes slots of others");
  if (difference(values(later.grads), values(all.grads)) > 1e-14)
    broken.push_back("gradients depend on slots of others");
  return broken;
}

}  // namespace gatefold::support
