#!/usr/bin/env bash
# warnings.sh SOURCE WORK "INCLUDE_FOLDER..." COMPILER...: programs that include the headers as their own, by -I, with
# more warnings than the library's tests have. Each compiler reads every umbrella header as a precompiled header, then
# one file that holds several sources (a unity build) with -flto, and links it. g++ finds some warnings only while it
# optimises: its object holds machine code beside the code for -flto.
set -euo pipefail
source=$1 work=$2
read -ra folders <<<"$3"
shift 3
rm -rf "$work"
mkdir -p "$work"
flags=(-std=c++20 -O1 -march=native -pthread -flto=auto -Wall -Wextra -Wpedantic -Werror -Wshadow -Wconversion
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
#include "$source/examples/papers.cpp"
#include "$source/tests/package/warnings.cpp"
END
for compiler; do
  if "$compiler" --version | grep -q clang; then
    own=() link=(-fuse-ld=lld)
    header=(-x c++-header -o "$work/umbrellas.pch") precompiled=(-include-pch "$work/umbrellas.pch")
  else
    own=(-Wuseless-cast -ffat-lto-objects) link=()
    header=(-x c++-header -o "$work/umbrellas.hpp.gch") precompiled=(-include "$work/umbrellas.hpp" -Winvalid-pch)
  fi
  "$compiler" "${flags[@]}" "${own[@]}" "${header[@]}" "$work/umbrellas.hpp"
  "$compiler" "${flags[@]}" "${own[@]}" "${precompiled[@]}" -c "$work/unity.cpp" -o "$work/unity.o"
  "$compiler" "${flags[@]}" "${own[@]}" "${link[@]}" "$work/unity.o" -lz -o "$work/unity"
done
