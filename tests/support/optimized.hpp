#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "gatefold/backend/cpu/cpu.hpp"
#include "gatefold/tensor/pack.hpp"
#include "support/larger.hpp"
#include "support/naive.hpp"

/// A small pack of parameters for the tests of optimizers, and a function that compares two packs.
namespace optimized {

using namespace gatefold;
using naive::random_vector;

template <class T>
struct Pack {
  Tensor<T, 3, Cpu> weight;
  Tensor<T, 1, Cpu> bias;
  GATEFOLD_PACK(weight, bias)
};
template <class T>
Pack<T> random_pack(unsigned seed) {
  Pack<T> p{Tensor<T, 3, Cpu>(3, 4, 5), Tensor<T, 1, Cpu>(7)};
  for_each_tensor(
      [&](const Name&, auto& t) {
        const auto values = random_vector<T>(t.size(), seed++);
        std::copy(values.begin(), values.end(), t.data());
      },
      p);
  return p;
}
template <class T>
std::vector<double> flat(const Pack<T>& p) {
  std::vector<double> all;
  for_each_tensor([&](const Name&, const auto& t) { all.insert(all.end(), t.data(), t.data() + t.size()); }, p);
  return all;
}
/// Returns the largest relative error of an element. Elements smaller than 0.1 count as 0.1, because parameters and
/// moments are about 1.
inline double worst(const std::vector<double>& a, const std::vector<double>& b) {
  double w = a.size() == b.size() ? 0 : 1e300;
  for (std::size_t i = 0; i < a.size() && i < b.size(); ++i)
    w = support::larger(w, std::abs(a[i] - b[i]) / std::max(std::abs(b[i]), 0.1));
  return w;
}

}  // namespace optimized
