#pragma once

// Spectra of layers on the CPU. Not part of gatefold.hpp, because few programs need them.

#include "gatefold/backend/cpu/eigenvalues.hpp"
#include "gatefold/layer/jacobian.hpp"
#include "gatefold/metric/stability.hpp"
