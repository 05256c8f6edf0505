#pragma once

/// Processes whose devices talk through NCCL. Outside the umbrella: they need NCCL (target gatefold::nccl).
#include "gatefold/backend/cuda/nccl.cuh"
#include "gatefold/dist/nccl.hpp"
