#pragma once

#include <cstdint>

#include "gatefold/core/error.hpp"

namespace gatefold {

/// The form in which `freeze` stores the weights of matrix products. The last three forms have a scale s for each group
/// of 32 weights of a column. With them, a product on a CPU also rounds its input items x to 8 bits:
///
///     ŵ = s q
///     int8   s = bf16(a / 127)                 q = round(w / s), from −127 to 127                         (1)
///     int4   s = bf16(m / −8)                  q = round(w / s), from −8 to 7                             (2)
///     mxfp4  s = 2^e, the smallest s ≥ a / 6   q = the number of ±{0, ½, 1, 1½, 2, 3, 4, 6} nearest to w / s   (3)
///
///     x̂ = t p, t = a / 127                     p = round(x · (127 / a)), from −127 to 127                 (4)
///     y_j = Σ_groups (s t) Σ_k q_kj p_k                                                                   (5)
///
/// A group of weights consists of rows 32 i to 32 i + 31 of one column. A group of an item consists of 32 consecutive
/// numbers. Each group has its own s or t. a is the largest magnitude of a group, and m is the first weight with this
/// magnitude, with its sign. bf16 rounds to bfloat16. All roundings are to nearest, ties to even. In eq. (3), s is at
/// least 2⁻¹²⁷, unless all weights of the group are 0.
///
/// The errors |w − ŵ| are at most s / 2 in int8, 1.04 |s| in int4 (|s| / 2 unless w / s > 7.5) and s in mxfp4; |x − x̂|
/// is at most 0.5001 t. The inner sums of eq. (5) are exact. The outer sums are computed in float: first one sum for
/// each block of 256 rows, and then the sum of these sums in order. The bits of a result depend on the item and the
/// weights, not on the number of items or threads.
///
/// A backward pass computes dx = dy ŵᵀ in float. It ignores the rounding of eq. (4). Products on a GPU do not round the
/// items to 8 bits: y = x ŵ (layer/frozen.hpp). On CudaBf16, both passes round their factors (x or dy, and ŵ) to
/// bfloat16.
///
/// A group of zeros has the scale 0. In int8, int4 and eq. (4), each group with a < 2⁻¹⁰⁰ becomes a group of zeros. A
/// group that contains an infinity or NaN has the scale NaN.
///
/// Source: OCP Microscaling Formats 1.0 (eq. (3)); eq. (1), (2) and (4) are those of ggml's q8_0 and q4_0, whose scales
/// are float16.
enum class Weights : char {
  unchanged,  // the type of the parameters is kept; results do not change
  bfloat16,   // floats rounded to bfloat16: 2 bytes for each weight
  int8,       // 34 bytes for 32 weights
  int4,       // 18 bytes for 32 weights
  mxfp4,      // 18 bytes for 32 weights; a weight of a gpt-oss checkpoint keeps its value
};

/// Returns whether weights are stored in groups that have a scale, eq. (1) to (3).
constexpr bool is_quantised(Weights weights) { return weights >= Weights::int8; }

/// Returns whether weights at this address have elements. Weights that exist only as a packed copy have an odd address
/// (`reserve_packed` of a backend).
template <class T>
bool has_elements(const T* weights) {
  return reinterpret_cast<std::uintptr_t>(weights) % alignof(T) == 0;
}
/// Checks that weights have elements.
/// @throws ArgumentError if they exist only as a packed copy
template <class T>
void expect_elements(const char* where, const T* weights) {
  expect(has_elements(weights), where, "weights",
         "weights with elements, or the frozen parameters that have their packed copy",
         "parameters without elements; pass the FrozenParams to infer");
}

}  // namespace gatefold
