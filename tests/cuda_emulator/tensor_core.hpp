// The arithmetic of tensor cores on .bf16, as P. Xie et al. measured it (MMA-Sim, arXiv 2511.10909): products are
// exact; they and the addend are aligned to the largest exponent among them and cut off some bits below it; their sum
// is exact, and cut off to float. Nothing is rounded to nearest.
#pragma once

#include <cmath>
#include <cstdint>

#include "cuda_emulator/real16.hpp"

namespace gatefold::cuda_emulator {

/// significand 2^exponent. The significand of a normal number is from 1 to 2; a number below it has the exponent of the
/// smallest normal number, and zero one that counts for nothing. Infinity and NaN are their own significands.
struct Factor {
  explicit Factor(BFloat number);
  float significand;
  std::int32_t exponent;
};

/// Up to 16 factors of sums of products, of one row of A or `width` columns of B.
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
  int fraction_bits;  // that terms keep below the largest exponent
  int products;       // that are added at once

  static constexpr TensorCore of(int compute_capability) {
    return compute_capability >= 90 ? TensorCore{25, 16} : TensorCore{24, 8};
  }

  static constexpr int columns = 8;  // that are computed side by side
  using Row = Factors<1>;
  using Columns = Factors<columns>;
  using Sums = float[columns];

  /// c += a[0] b[0] + ... + a[depth - 1] b[depth - 1], for every column of b
  void multiply_add(const Row& a, const Columns& b, int depth, Sums& c) const;

 private:
  void add(const Row& a, const Columns& b, int begin, int end, Sums& c) const;
};

}  // namespace gatefold::cuda_emulator
