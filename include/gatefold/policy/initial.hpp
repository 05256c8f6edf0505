#pragma once

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
