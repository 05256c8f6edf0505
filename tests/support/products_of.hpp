#pragma once

#include "gatefold/core/bfloat16.hpp"

/// The element types that the tests of the CPU engine multiply: only bfloat16 if tests/march compiles them for it.
#if defined(GATEFOLD_TEST_BFLOAT16_ALONE)
#define GATEFOLD_PRODUCTS_OF gatefold::Bfloat16
#else
#define GATEFOLD_PRODUCTS_OF float, double, gatefold::Bfloat16
#endif
