#!/usr/bin/env bash
# names.sh SOURCE EIGEN COMPILER...: names that many programs declare do not collide with names of the library under
# `using namespace gatefold;`.
set -uo pipefail
source=$1 eigen=$2
shift 2
failed=0
for compiler; do
  for kind in FUNCTIONS VARIABLES NAMESPACES TYPES; do
    "$compiler" -std=c++20 "-DAS_$kind" -I"$source/include" -isystem "$eigen" -fsyntax-only \
      "$source/tests/package/names.cpp" || { echo "$compiler: words collide as $kind"; failed=1; }
  done
done
exit $failed
