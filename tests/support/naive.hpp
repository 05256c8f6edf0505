#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "gatefold/core/types.hpp"

/// Plain loops in double, written from the formulas in backend/backend.hpp. Tests compare every backend with them.
namespace gatefold::naive {

/// Returns n random numbers in [-1, 1), each from two draws. std::uniform_real_distribution makes the same numbers, but
/// computes a logarithm for each.
template <class T>
std::vector<T> random_vector(Index n, unsigned seed) {
  std::mt19937 generator(seed);
  std::vector<T> x(static_cast<std::size_t>(n));
  for (T& v : x) {
    const std::uint64_t low = generator(), high = generator();
    v = static_cast<T>(static_cast<double>(high << 32 | low) * 0x1p-63 - 1);
  }
  return x;
}

/// A view of row-major numbers. If `transposed` is true, its element (i, j) is element (j, i) of the numbers.
template <class T>
struct Matrix {
  const T* data;
  Index columns;
  bool transposed = false;

  double operator()(Index i, Index j) const {
    return static_cast<double>(transposed ? data[j * columns + i] : data[i * columns + j]);
  }
};

/// Returns Σ_k a[i, k] b[k, j].
template <class T>
double dot(const Matrix<T>& a, Index i, const Matrix<T>& b, Index j, Index depth) {
  double sum = 0;
  for (Index k = 0; k < depth; ++k) sum += a(i, k) * b(k, j);
  return sum;
}

/// Slots of experts with different numbers of slots: the offsets [E + 1], and the row that each slot reads.
struct Slots {
  std::vector<Index> offsets{0}, rows;

  Slots(std::span<const Index> counts, Index items, unsigned seed) {
    std::mt19937 generator(seed);
    for (const Index count : counts) offsets.push_back(offsets.back() + count);
    for (Index s = 0; s < offsets.back(); ++s)
      rows.push_back(static_cast<Index>(generator() % static_cast<unsigned>(items)));
  }
  Index count() const { return offsets.back(); }
  Index experts() const { return static_cast<Index>(offsets.size()) - 1; }
};

}  // namespace gatefold::naive
