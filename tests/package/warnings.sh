#!/usr/bin/env bash
# warnings.sh SOURCE WORK "INCLUDE_FOLDER..." COMPILER: compiles programs that include the headers with -I, not
# -isystem, with more warnings than the library's tests have. All umbrella headers are in a precompiled header. The
# compiler compiles one file that contains several sources (a unity build), and one example with -flto, which it also
# links. g++ finds some warnings only if it optimises; clang++ finds all while it parses.
set -euo pipefail
source=$1 work=$2 compiler=$4
read -ra folders <<<"$3"
rm -rf "$work"
mkdir -p "$work"
flags=(-std=c++20 -O1 -march=native -pthread -Wall -Wextra -Wpedantic -Werror -Wshadow -Wconversion
  -Wsign-conversion -Wold-style-cast -Wcast-qual -Wcast-align -Wdouble-promotion -Wextra-semi -Wformat=2
  -Wnon-virtual-dtor -Woverloaded-virtual -Wundef "-I$source/include" -isystem /usr/include/eigen3)
for folder in "${folders[@]}"; do flags+=(-isystem "$folder"); done
for header in gatefold io data distributed check papers kernels mpi; do
  case $header in
    io) needs=nlohmann/json.hpp ;;
    data) needs=zlib.h ;;
    mpi) needs=mpi.h ;;
    *) needs=cstddef ;;
  esac
  printf '#if __has_include(<%s>)\n#include <gatefold/%s.hpp>\n#endif\n' "$needs" "$header"
done >"$work/umbrellas.hpp"
cat >"$work/unity.cpp" <<END
#include "$source/examples/quickstart.cpp"
#include "$source/tests/package/warnings.cpp"
END
if "$compiler" --version | grep -q clang; then
  own=() unity=(-fsyntax-only) link=(-flto -fuse-ld=lld)
  header=(-x c++-header -o "$work/umbrellas.pch") precompiled=(-include-pch "$work/umbrellas.pch")
else
  own=(-Wuseless-cast) unity=(-c -o "$work/unity.o") link=(-flto=auto)
  header=(-x c++-header -o "$work/umbrellas.hpp.gch") precompiled=(-include "$work/umbrellas.hpp" -Winvalid-pch)
fi
"$compiler" "${flags[@]}" "${own[@]}" "${header[@]}" "$work/umbrellas.hpp"
"$compiler" "${flags[@]}" "${own[@]}" "${precompiled[@]}" "${unity[@]}" "$work/unity.cpp"
"$compiler" "${flags[@]}" "${own[@]}" "${precompiled[@]}" "${link[@]}" "$source/examples/own_rule.cpp" -o "$work/linked"
