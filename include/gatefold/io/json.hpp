#pragma once

/// Includes nlohmann's JSON library for the headers of gatefold/io. Functions that read or write JSON are templates
/// with the parameter `Json = nlohmann::json`, so that the CMake target gatefold::kernels can contain compiled versions
/// of them (if gatefold::io is available). In programs that link this target, GATEFOLD_KERNELS_IO is defined: the
/// headers then declare the functions for nlohmann::json as `extern template` (GATEFOLD_IO_KERNEL), and include only
/// the forward declarations of the JSON library. See docs/explanation/compile_time.md.
#if defined(GATEFOLD_KERNELS_IO)
#include <nlohmann/json_fwd.hpp>
#define GATEFOLD_IO_KERNEL extern template
#else
#include <nlohmann/json.hpp>
#if defined(GATEFOLD_KERNELS_IO_SOURCE)
#define GATEFOLD_IO_KERNEL template
#endif
#endif
