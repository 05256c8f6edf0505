#pragma once

/// Processes that talk through MPI. Outside the umbrella: they need an MPI library (target gatefold::mpi).
#include "gatefold/dist/mpi.hpp"
#include "gatefold/dist/mpi_notices.hpp"
#include "gatefold/dist/mpi_progress.hpp"
#include "gatefold/dist/mpi_status.hpp"
#include "gatefold/dist/mpi_transfers.hpp"
