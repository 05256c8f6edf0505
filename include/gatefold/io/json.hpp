#pragma once

/// JSON, for the functions of this folder that read or write it: templates over its library, `nlohmann::json`. The
/// target gatefold::kernels holds them where gatefold::io is known (GATEFOLD_KERNELS_IO): then each header declares its
/// own of them here, by GATEFOLD_IO_KERNEL, and the library itself is not read. See docs/explanation/compile_time.md.
#if defined(GATEFOLD_KERNELS_IO)
#include <nlohmann/json_fwd.hpp>
#define GATEFOLD_IO_KERNEL extern template
#else
#include <nlohmann/json.hpp>
#if defined(GATEFOLD_KERNELS_IO_SOURCE)
#define GATEFOLD_IO_KERNEL template
#endif
#endif
