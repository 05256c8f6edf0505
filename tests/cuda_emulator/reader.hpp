// Reads PTX text.
#pragma once

#include <memory>
#include <string>

#include "cuda_emulator/ptx.hpp"

namespace gatefold::cuda_emulator {

/// Reads a module: places and initialises its variables and finds its functions.
///
/// Unknown instructions are kept, and refused when they are executed, so that a module may contain kernels for features
/// that are not used.
///
/// @throws Fault with the line of PTX if the text is malformed or a directive is unknown
std::unique_ptr<Module> read(std::string ptx);

}  // namespace gatefold::cuda_emulator
