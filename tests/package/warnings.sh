#!/usr/bin/env bash
# warnings.sh SOURCE WORK "INCLUDE_FOLDER..." COMPILER: compiles programs that include the headers with -I, not
# -isystem, with more warnings than the library's tests have. All umbrella headers are in a precompiled header. One file
# contains several sources (a unity build). g++ compiles it with -flto and optimises it, because g++ finds some warnings
# only then. clang++ finds all warnings while it parses, and links one example with -flto.
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
version=$("$compiler" --version)
[[ $version == *clang* ]] || flags+=(-Wuseless-cast)
"$compiler" "${flags[@]}" -x c++-header "$work/umbrellas.hpp" -o "$work/umbrellas.hpp.gch"
flags+=(-include "$work/umbrellas.hpp" -Winvalid-pch)
if [[ $version == *clang* ]]; then
  "$compiler" "${flags[@]}" -fsyntax-only "$work/unity.cpp"
  "$compiler" "${flags[@]}" -flto -fuse-ld=lld "$source/examples/own_rule.cpp" -o "$work/linked"
else
  "$compiler" "${flags[@]}" -flto=auto -c "$work/unity.cpp" -o "$work/unity.o"
  "$compiler" -O1 -march=native -flto=auto -r -flinker-output=nolto-rel "$work/unity.o" -o "$work/optimised.o"
fi
