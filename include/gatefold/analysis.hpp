#pragma once

// Spectra of layers on the CPU: kept out of gatefold.hpp because they need Eigen's decompositions, which take a while to
// compile.

#include "gatefold/backend/cpu/eigenvalues.hpp"
#include "gatefold/layer/jacobian.hpp"
#include "gatefold/metric/stability.hpp"
