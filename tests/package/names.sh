#!/usr/bin/env bash
# names.sh SOURCE EIGEN COMPILER...: names that many programs declare do not collide with names of the library under
# `using namespace gatefold;`. The last compiler tries all kinds of names, the others only functions, because all
# compilers look names up in the same way.
set -euo pipefail
source=$1 eigen=$2
shift 2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
last=${*: -1}
printf '#include <gatefold/%s.hpp>\n' distributed gatefold io >"$work/headers.hpp"
for compiler; do
  compile=("$compiler" -std=c++20 "-I$source/include" -isystem "$eigen")
  kinds=(FUNCTIONS)
  if [[ $compiler == "$last" ]]; then
    kinds+=(VARIABLES NAMESPACES TYPES)
    # The headers are read once, in a precompiled header.
    "${compile[@]}" -x c++-header "$work/headers.hpp" -o "$work/headers.hpp.gch"
    compile+=(-include "$work/headers.hpp" -Winvalid-pch)
  fi
  for kind in "${kinds[@]}"; do
    "${compile[@]}" "-DAS_$kind" -fsyntax-only "$source/tests/package/names.cpp" ||
      { echo "$compiler: names collide as $kind"; failed=1; }
  done
done
exit $failed
