#pragma once

#include "gatefold/core/bfloat16.hpp"

/// The element types that the tests of the CPU engine multiply. Programs that tests/march compiles for bfloat16
/// multiply only this type.
#if defined(GATEFOLD_TEST_BFLOAT16_ALONE)
#define GATEFOLD_PRODUCTS_OF gatefold::Bfloat16
#else
#define GATEFOLD_PRODUCTS_OF float, double, gatefold::Bfloat16
#endif
