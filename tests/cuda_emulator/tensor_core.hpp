// The arithmetic of tensor cores on .bf16, as P. Xie et al. measured it (MMA-Sim, arXiv 2511.10909): products are
// exact; they and the addend are aligned to the largest exponent among them and cut off some bits below it; their sum
// is exact, and cut off to float. Nothing is rounded to nearest.
#pragma once

#include <cstdint>

#include "cuda_emulator/real16.hpp"

namespace gatefold::cuda_emulator {

/// Up to 16 factors of a sum of products: of a row of A or a column of B.
struct Factors {
  static constexpr int most = 16;

  void set(int k, BFloat number);

  double number[most] = {};
  std::int32_t exponent[most] =
      {};  // that of the smallest normal number for those below it; zeros have one that counts
           // for nothing
  bool finite = true;
};

struct TensorCore {
  int fraction_bits;  // that terms keep below the largest exponent
  int products;       // that are added at once

  static constexpr TensorCore of(int compute_capability) {
    return compute_capability >= 90 ? TensorCore{25, 16} : TensorCore{24, 8};
  }

  /// a[0] b[0] + ... + a[depth - 1] b[depth - 1] + c
  float multiply_add(const Factors& a, const Factors& b, int depth, float c) const;

 private:
  float add(const Factors& a, const Factors& b, int begin, int end, float c) const;
};

}  // namespace gatefold::cuda_emulator
