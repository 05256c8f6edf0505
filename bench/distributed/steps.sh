#!/usr/bin/env bash
# Times steps of a mixture on 1, 2 and 4 processes, which share the processors of this machine. Prints one JSON object
# per line (step.cpp), which plan.py --check reads. For comparison, one process also runs a Mixture without shards on
# the same number of items.
# usage: bash bench/distributed/steps.sh BUILD_FOLDER [ITEMS DIM HIDDEN EXPERTS K]
set -euo pipefail
program=$1/bench/dist_step
items=${2:-2048} shape=("${3:-512}" "${4:-2048}" "${5:-8}" "${6:-2}")
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_MCA_hwloc_base_binding_policy=none
threads=$(nproc)
for ranks in 1 2 4; do
  all=$((items * ranks))  # each process has the same number of items
  each=$((threads / ranks > 0 ? threads / ranks : 1))
  "$program" 0 $all "${shape[@]}" "$threads"
  mpirun -n 1 "$program" $ranks $all "${shape[@]}" "$threads"
  ((ranks == 1)) || mpirun -n $ranks "$program" $ranks $all "${shape[@]}" $each
done
