#pragma once

// The library with its CUDA backend, for files compiled by nvcc.

#include "gatefold/backend/cuda/blas_experts.cuh"
#include "gatefold/backend/cuda/cuda.cuh"
#include "gatefold/backend/cuda/few_rows.cuh"
#include "gatefold/backend/cuda/group_by.cuh"
#include "gatefold/backend/cuda/group_table.cuh"
#include "gatefold/backend/cuda/handles.cuh"
#include "gatefold/backend/cuda/loops.cuh"
#include "gatefold/backend/cuda/mover.cuh"
#include "gatefold/backend/cuda/operand.cuh"
#include "gatefold/backend/cuda/packed_weights.cuh"
#include "gatefold/backend/cuda/plain_product.cuh"
#include "gatefold/backend/cuda/product.cuh"
#include "gatefold/backend/cuda/product_rows.cuh"
#include "gatefold/backend/cuda/row_tile.cuh"
#include "gatefold/backend/cuda/schedule.cuh"
#include "gatefold/backend/cuda/status.cuh"
#include "gatefold/backend/cuda/tile.cuh"
#include "gatefold/backend/cuda/warp.cuh"
#include "gatefold/policies.hpp"
