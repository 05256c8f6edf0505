// The arithmetic of tensor cores on .bf16, as P. Xie et al. measured it (MMA-Sim, arXiv 2511.10909). Products are
// exact. The products and the addend are aligned to the largest exponent among them, and bits too far below it are cut
// off. Their sum is exact, and cut off to float. Nothing is rounded to nearest.
#pragma once

#include <cmath>
#include <cstdint>

#include "cuda_emulator/real16.hpp"

namespace gatefold::cuda_emulator {

/// A number as significand · 2^exponent. The significand of a normal number is from 1 to 2. A subnormal number has the
/// exponent of the smallest normal number. Zero has an exponent that is smaller than all others. Infinity and NaN are
/// their own significands.
struct Factor {
  explicit Factor(BFloat number);
  float significand;
  std::int32_t exponent;
};

/// Up to 16 factors of sums of products, from one row of A or from `width` columns of B.
template <int width>
struct Factors {
  static constexpr int most = 16;

  void set(int k, int column, Factor factor) {
    significand[k][column] = factor.significand;
    exponent[k][column] = factor.exponent;
    finite = finite && std::isfinite(factor.significand);
  }

  float significand[most][width] = {};
  std::int32_t exponent[most][width] = {};
  bool finite = true;
};

struct TensorCore {
  int fraction_bits;  // number of bits that terms keep below the largest exponent
  int products;       // number of products that are added at once

  static constexpr TensorCore of(int compute_capability) {
    return compute_capability >= 90 ? TensorCore{25, 16} : TensorCore{24, 8};
  }

  static constexpr int columns = 8;  // number of columns that are computed together
  using Row = Factors<1>;
  using Columns = Factors<columns>;
  using Sums = float[columns];

  /// Computes c += a[0] b[0] + ... + a[depth - 1] b[depth - 1] for every column of b.
  void multiply_add(const Row& a, const Columns& b, int depth, Sums& c) const;

 private:
  void add(const Row& a, const Columns& b, int begin, int end, Sums& c) const;
};

}  // namespace gatefold::cuda_emulator
