#pragma once

/// Includes nlohmann's JSON library for the headers of gatefold/io. Functions that read or write JSON are templates
/// with the parameter `Json = nlohmann::json`, so that the CMake target gatefold::kernels can contain compiled versions
/// of them (if gatefold::io is available). In programs that link this target, GATEFOLD_KERNELS_IO is defined: the
/// headers then only declare these functions, with GATEFOLD_IO_KERNEL, and do not include the JSON library. See
/// docs/explanation/compile_time.md.
#if defined(GATEFOLD_KERNELS_IO)
#include <nlohmann/json_fwd.hpp>
#define GATEFOLD_IO_KERNEL extern template
#else
#include <nlohmann/json.hpp>
#if defined(GATEFOLD_KERNELS_IO_SOURCE)
#define GATEFOLD_IO_KERNEL template
#endif
#endif
