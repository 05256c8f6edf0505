#!/usr/bin/env bash
# kernels.sh find_package|add_subdirectory WORK SOURCE PREFIX COMPILER OPTIMISATION OPTIMISER: checks that
# gatefold::kernels gives the same bits as gatefold::gatefold, and that a file compiled for an instruction set that
# gatefold::kernels lacks stops with a message. A file that links the library must not contain the library's code
# itself, whether it is compiled with COMPILER OPTIMISATION or with OPTIMISER -O1.
set -euo pipefail
unset CXXFLAGS CPPFLAGS LDFLAGS
here=$(cd "$(dirname "$0")" && pwd)
way=$1 work=$2 source=$3 prefix=$4 compiler=$5 optimisation=$6 optimiser=$7
rm -rf "$work"
from=(-DCMAKE_PREFIX_PATH="$prefix")
[[ $way == add_subdirectory ]] && from=(-DGATEFOLD_SUBDIRECTORY="$source" -DGATEFOLD_CUDA=OFF)
cmake -S "$here/kernels" -B "$work" -G Ninja -DCMAKE_CXX_COMPILER="$compiler" "${from[@]}" \
  -DCMAKE_CXX_FLAGS="$optimisation -march=x86-64-v3" -DGATEFOLD_KERNELS_OPTIMISATION="$optimisation"
cmake --build "$work"
if grep -qw bmi2 /proc/cpuinfo && grep -qw fma /proc/cpuinfo; then
  for library in gatefold kernels; do (cd "$work" && "./with_$library" >"with_$library.txt"); done
  cmp "$work/with_gatefold.txt" "$work/with_kernels.txt"
  (($(wc -l <"$work/with_kernels.txt") > 100000)) || { echo "too few numbers"; exit 1; }
fi
# Checks that a second build compiles nothing.
object=CMakeFiles/with_kernels.dir/training.cpp.o
command=$(ninja -C "$work" -t commands "$object" | tail -n 1)
[[ $command == *"$compiler "*" $optimisation "*" -o $object "* ]] || { echo "unexpected: $command"; exit 1; }
command=${command/"$compiler "/"$optimiser "}
command=${command/" $optimisation "/" -O1 "}
(cd "$work" && eval "${command/" -o $object "/" -o optimised.o "}")
if nm -C "$work/$object" "$work/optimised.o" |
  grep -E ' [tTwW] .*::(tile_sum|Product(Pair)?<.*>::run|Workers::help|sax_parse_internal)'; then
  echo "FAILED: a file that links gatefold::kernels contains the engine, its threads or the JSON parser"
  exit 1
fi
if cmake --build "$work" --target mismatch >"$work/mismatch.txt" 2>&1; then
  echo "FAILED: a file compiles although no kernels exist for its instruction set"
  exit 1
fi
sentence="gatefold::kernels: this file is compiled for 'avx512_dq', but the kernels were built only for .*"
sentence+="avx2_fma .*: compile it with the -march of one of them"
grep -E "$sentence" "$work/mismatch.txt" || { cat "$work/mismatch.txt"; exit 1; }
