#pragma once

#include <cmath>
#include <initializer_list>

#include "gatefold/core/error.hpp"
#include "gatefold/core/types.hpp"

namespace gatefold {

/// Chooses the distribution of initial weights [experts, in, out] or [in, out] and of their biases. The values are
/// drawn by backend/initial_values.hpp.
///
///     fan_in         W, b ~ U(±scale/√in)                                                               (1)
///     reference      W ~ U(±scale/√(in·out)),  b = 0                                                    (2)
///     normal         W ~ N(0, scale²),         b = 0                                                    (3)
///     normal_fan_in  W ~ N(0, scale²/in),      b = 0                                                    (4)
///     zero           W = 0,                    b = 0                                                    (5)
///
/// Source: (1) torch.nn.Linear. (2) FastMoE, the code of papers 001 and 002. Its Kaiming rule takes in·out for the
/// fan-in, because the weights have three extents. Therefore the weights of (2) are √out times smaller than in (1).
/// @param shared  if true, all experts start with the values of the first expert. They become different because they
///                receive different items. Source: V-MoE, Riquelme et al. 2021, arXiv:2106.05974
/// @throws ArgumentError unless scale is finite and at least 0, or if `shared` is set for weights [in, out], which
///         belong to no experts
struct Initial {
  enum class Law { fan_in, reference, normal, normal_fan_in, zero };

  Law law = Law::fan_in;
  double scale = 1;
  bool shared = false;

  static Initial reference() { return {Law::reference, 1, false}; }
  static Initial normal(double sigma) { return {Law::normal, sigma, false}; }
  static Initial zero() { return {Law::zero, 0, false}; }
};

}  // namespace gatefold

/// Checks of options that several families of policies use.
namespace gatefold {

/// A size among the options of a policy, with its name for error messages.
struct NamedSize {
  const char* name;
  Index value;
};
/// Requires that all sizes are at least 1.
/// @throws ArgumentError that names the first size below 1
inline void expect_sizes(const char* where, std::initializer_list<NamedSize> sizes) {
  for (const NamedSize& size : sizes) expect(size.value >= 1, where, size.name, "at least 1", size.value);
}
/// Requires that an option is finite.
/// @throws ArgumentError unless the option is a finite number
inline void expect_finite(const char* where, Printed option, double value) {
  expect(std::isfinite(value), where, option, "a finite number", value);
}
/// Requires that an option is finite and positive.
/// @throws ArgumentError unless the option is a finite number above 0
inline void expect_positive(const char* where, Printed option, double value) {
  expect(value > 0, where, option, "more than 0", value);
  expect_finite(where, option, value);
}

/// Returns a copy of a policy with the member `model_dim` set to `width`. `of` is the name, in the error message, of
/// the part of the model that has this width.
/// @throws ArgumentError unless model_dim is 0 or `width`
template <class P>
P fill_model_dim(P policy, const char* where, Index width, const char* of = "items") {
  expect(policy.model_dim == 0 || policy.model_dim == width, where, "model_dim",
         Joined{width, " (the width of the ", of, ")"}, policy.model_dim);
  policy.model_dim = width;
  return policy;
}

}  // namespace gatefold
