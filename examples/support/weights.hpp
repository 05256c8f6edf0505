#pragma once

#include <cstddef>
#include <gatefold/core/weights.hpp>
#include <string>
#include <vector>

namespace command_line {

/// Returns the values of the option `weights`, the forms in which weights of matrix products are packed.
inline std::vector<std::string> forms_of_weights() { return {"float", "bfloat16", "int8", "int4", "mxfp4"}; }

/// Returns the form of a value of the option `weights`. All other texts give Weights::unchanged.
inline gatefold::Weights form_of_weights(const std::string& name) {
  using gatefold::Weights;
  if (name == "bfloat16") return Weights::bfloat16;
  if (name == "int8") return Weights::int8;
  if (name == "int4") return Weights::int4;
  return name == "mxfp4" ? Weights::mxfp4 : Weights::unchanged;
}

}  // namespace command_line
