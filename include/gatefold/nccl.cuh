#pragma once

/// Communication between devices of several processes through NCCL. This header is not part of gatefold.cuh, because it
/// needs NCCL (CMake target gatefold::nccl).
#include "gatefold/backend/cuda/nccl.cuh"
#include "gatefold/distributed/nccl.hpp"
