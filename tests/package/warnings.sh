#!/usr/bin/env bash
# warnings.sh SOURCE COMPILER...: programs that include the headers as their own, not by -isystem, and ask for more
# warnings than the library's tests do.
set -euo pipefail
source=$1
shift
flags=(-Wall -Wextra -Wpedantic -Werror -Wshadow -Wconversion -Wold-style-cast -Wcast-qual -Wcast-align
  -Wdouble-promotion -Wextra-semi -Wformat=2 -Wnon-virtual-dtor -Woverloaded-virtual -Wundef)
for compiler; do
  for program in examples/papers examples/serving tests/package/warnings; do
    "$compiler" -std=c++20 -march=native "${flags[@]}" -I"$source/include" -isystem /usr/include/eigen3 -fsyntax-only \
      "$source/$program.cpp"
  done
done
