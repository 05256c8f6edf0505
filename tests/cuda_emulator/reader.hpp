// Reads PTX text.
#pragma once

#include <memory>
#include <string>

#include "cuda_emulator/ptx.hpp"

namespace gatefold::cuda_emulator {

/// Reads a module: places and initialises its variables and finds its functions.
///
/// Unknown instructions are kept, and refused where they are executed, so that a module may hold kernels for features
/// that are never used.
///
/// @throws Fault with the line of PTX where the text is malformed or a directive unknown
std::unique_ptr<Module> read(std::string ptx);

}  // namespace gatefold::cuda_emulator
