#pragma once

/// Communication between processes through MPI. This header is not part of gatefold.hpp, because it needs an MPI
/// library (CMake target gatefold::mpi).
// Each header comes after the headers that it includes itself. The script tests/structure/order.sh checks this order.
// clang-format off
#include "gatefold/distributed/mpi_transfers.hpp"
#include "gatefold/distributed/mpi.hpp"
// clang-format on
