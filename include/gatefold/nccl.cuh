#pragma once

/// Communication of devices of several processes through NCCL. Not part of gatefold.cuh, because it needs NCCL (target
/// gatefold::nccl).
#include "gatefold/backend/cuda/nccl.cuh"
#include "gatefold/distributed/nccl.hpp"
