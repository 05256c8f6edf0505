#pragma once

#include <cmath>

#include "gatefold/core/error.hpp"
#include "gatefold/core/types.hpp"

/// Checks of options that several families of policies use.
namespace gatefold {

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

/// Returns a copy of a policy with the member `model_dim` set to `width`, the width of the part of the model that is
/// called `of` in the error message.
/// @throws ArgumentError unless model_dim is 0 or `width`
template <class P>
P fill_model_dim(P policy, const char* where, Index width, const char* of = "items") {
  expect(policy.model_dim == 0 || policy.model_dim == width, where, "model_dim",
         Joined{width, " (the width of the ", of, ")"}, policy.model_dim);
  policy.model_dim = width;
  return policy;
}

}  // namespace gatefold
