#pragma once

/// Readers of data sets. Outside the umbrella: they need zlib (target gatefold::data).
#include "gatefold/core/regular_file.hpp"
#include "gatefold/data/idx.hpp"
