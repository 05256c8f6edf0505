#pragma once

/// Communication of processes through MPI. Not part of gatefold.hpp, because it needs an MPI library (target
/// gatefold::mpi).
// Each header comes after the headers that it includes (tests/structure/order.sh).
// clang-format off
#include "gatefold/distributed/mpi_status.hpp"
#include "gatefold/distributed/mpi_notices.hpp"
#include "gatefold/distributed/mpi_transfers.hpp"
#include "gatefold/distributed/mpi_progress.hpp"
#include "gatefold/distributed/mpi.hpp"
// clang-format on
