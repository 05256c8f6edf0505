#!/usr/bin/env bash
# names.sh SOURCE EIGEN COMPILER...: names that many programs declare do not collide with names of the library under
# `using namespace gatefold;`. The last compiler tries all kinds of names, the others only functions, because all
# compilers look names up in the same way.
set -uo pipefail
source=$1 eigen=$2
shift 2
failed=0
last=${*: -1}
for compiler; do
  kinds=(FUNCTIONS)
  [[ $compiler != "$last" ]] || kinds+=(VARIABLES NAMESPACES TYPES)
  for kind in "${kinds[@]}"; do
    "$compiler" -std=c++20 "-DAS_$kind" -I"$source/include" -isystem "$eigen" -fsyntax-only \
      "$source/tests/package/names.cpp" || { echo "$compiler: words collide as $kind"; failed=1; }
  done
done
exit $failed
