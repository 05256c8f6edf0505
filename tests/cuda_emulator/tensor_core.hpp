// The arithmetic of tensor cores on .bf16, as P. Xie et al. measured it (MMA-Sim, arXiv 2511.10909): products are
// exact; they and the addend are aligned to the largest exponent among them and cut off some bits below it; their sum
// is exact, and cut off to float. Nothing is rounded to nearest.
#pragma once

#include <cstdint>

#include "cuda_emulator/real16.hpp"

namespace gatefold::cuda_emulator {

/// Up to 16 factors of a sum of products, of a row of A or a column of B: significand[k] 2^exponent[k].
struct Factors {
  static constexpr int most = 16;

  void set(int k, BFloat number);

  // Of a normal number from 1 to 2; one below has the exponent of the smallest normal number. Infinity and NaN are
  // their own significands.
  float significand[most] = {};
  std::int32_t exponent[most] = {};  // zero has one that counts for nothing
  bool finite = true;
};

struct TensorCore {
  int fraction_bits;  // that terms keep below the largest exponent
  int products;       // that are added at once

  static constexpr TensorCore of(int compute_capability) {
    return compute_capability >= 90 ? TensorCore{25, 16} : TensorCore{24, 8};
  }

  /// a[0] b[0] + ... + a[depth - 1] b[depth - 1] + c, for a depth of 8 or 16
  float multiply_add(const Factors& a, const Factors& b, int depth, float c) const;

 private:
  float add(const Factors& a, const Factors& b, int begin, int end, float c) const;
};

}  // namespace gatefold::cuda_emulator
