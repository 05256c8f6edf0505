#!/usr/bin/env bash
# Checks how many lines of include/gatefold/backend/cpu the differential tests run: at least LEAST percent (98).
# usage: run.sh ROOT EIGEN_INCLUDE [LEAST]
set -euo pipefail
root=$1 eigen=$2 least=${3:-98}
command -v gcovr >/dev/null || { echo "coverage: gcovr is not installed (Debian: gcovr)"; exit 1; }
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
cd "$build"
# -U__OPTIMIZE__ makes the tests run fewer cases, because the atomic counters of gcov are slow.
flags=(-std=c++20 -O1 -U__OPTIMIZE__ --coverage -fprofile-update=atomic -march=native -I"$root/include"
  -I"$root/tests" -isystem "$eigen")
objects=()
for source in backend/cpu/differential_test expert/differential_test main; do
  object=${source//\//_}.o
  g++ "${flags[@]}" -c "$root/tests/$source.cpp" -o "$object" &
  objects+=("$object")
  (($(jobs -rp | wc -l) < $(nproc))) || wait -n
done
wait
g++ --coverage "${objects[@]}" -o differential
./differential
gcovr -r "$root" --object-directory . -f '.*include/gatefold/backend/cpu/.*' -e '.*/eigenvalues.hpp' \
  --fail-under-line "$least"
