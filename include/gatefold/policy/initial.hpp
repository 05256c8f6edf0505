#pragma once

namespace gatefold {

/// How weights [experts, in, out] (or [in, out]) and their biases begin (backend/initial_values.hpp draws them).
///
///     fan_in         W, b ~ U(±scale/√in)                                                               (1)
///     reference      W ~ U(±scale/√(in·out)),  b = 0                                                    (2)
///     normal         W ~ N(0, scale²),         b = 0                                                    (3)
///     normal_fan_in  W ~ N(0, scale²/in),      b = 0                                                    (4)
///     zero           W = 0,                    b = 0                                                    (5)
///
/// Source: (1) torch.nn.Linear; (2) FastMoE, the code of papers 001 and 002, whose Kaiming rule takes the inputs of all
/// three extents for the fan-in: √out times smaller than (1).
/// @param shared  all experts begin as the first one: they differ only through what they are given. Source: V-MoE,
///                Riquelme et al. 2021, arXiv:2106.05974
/// @throws ArgumentError unless scale is finite and at least 0, and where `shared` meets weights that are not of
///         experts
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
