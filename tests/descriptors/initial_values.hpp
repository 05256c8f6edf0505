#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "descriptors/composition.hpp"
#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/tensor/pack.hpp"

/// Checks that initial values of different parts come from different seeds.
namespace gatefold::rows {

/// Returns |correlation| of the values of a and b, up to the length of the shorter list.
inline double correlation(const std::vector<double>& a, const std::vector<double>& b) {
  const std::size_t n = std::min(a.size(), b.size());
  double of_a = 0, of_b = 0, aa = 0, bb = 0, ab = 0;
  for (std::size_t i = 0; i < n; ++i) {
    of_a += a[i] / double(n);
    of_b += b[i] / double(n);
  }
  for (std::size_t i = 0; i < n; ++i) {
    aa += (a[i] - of_a) * (a[i] - of_a);
    bb += (b[i] - of_b) * (b[i] - of_b);
    ab += (a[i] - of_a) * (b[i] - of_b);
  }
  return std::abs(ab) / std::sqrt(aa * bb);
}

/// Checks that no two tensors of the parameters, and no two experts in a tensor, use the same random numbers.
template <class C>
void check_initial_values(const C& c) {
  constexpr Index least = 10;  // fewer values may be alike by chance
  Cpu::Context ctx(1);
  const auto layer = c.make(odd);
  const auto params = init_params<double, Cpu>(layer, ctx, Seed{1});
  const auto others = init_params<double, Cpu>(layer, ctx, Seed{2});
  std::vector<std::string> names;
  std::vector<std::vector<double>> drawn;
  for_each_tensor(
      [&](const Name& name, const auto& t, const auto& of_another_seed) {
        const Index experts = t.rank >= 3 ? t.extent(0) : 1, size = t.size() / std::max<Index>(experts, 1);
        for (Index e = 0; e < experts && size >= least; ++e) {
          const auto *from = t.data() + e * size, *other = of_another_seed.data() + e * size;
          if (std::equal(from, from + size, other)) continue;  // values that no seed changes, for example ones
          names.push_back(name.str() + "[" + std::to_string(e) + "]");
          drawn.emplace_back(from, from + size);
        }
      },
      params, others);
  CHECK(drawn.size() >= 1);
  for (std::size_t i = 0; i < drawn.size(); ++i)
    for (std::size_t j = 0; j < i; ++j) {
      CAPTURE(names[i]);
      CAPTURE(names[j]);
      CHECK(correlation(drawn[i], drawn[j]) < 0.95);
    }
}

}  // namespace gatefold::rows
