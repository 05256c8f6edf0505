#pragma once

// Spectra of layers on the CPU: kept out of gatefold.hpp because few need them.

#include "gatefold/backend/cpu/eigenvalues.hpp"
#include "gatefold/layer/jacobian.hpp"
#include "gatefold/metric/stability.hpp"
