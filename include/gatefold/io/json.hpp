#pragma once

/// Includes the JSON library for the headers of this folder. Functions that read or write JSON are templates over the
/// type `nlohmann::json`. If gatefold::io is available, the target gatefold::kernels contains them compiled, and
/// defines GATEFOLD_KERNELS_IO. Each header then only declares its functions, with GATEFOLD_IO_KERNEL, and the JSON
/// library is not included. See docs/explanation/compile_time.md.
#if defined(GATEFOLD_KERNELS_IO)
#include <nlohmann/json_fwd.hpp>
#define GATEFOLD_IO_KERNEL extern template
#else
#include <nlohmann/json.hpp>
#if defined(GATEFOLD_KERNELS_IO_SOURCE)
#define GATEFOLD_IO_KERNEL template
#endif
#endif
