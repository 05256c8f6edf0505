#!/usr/bin/env bash
# run.sh ROOT EIGEN LIST...: puts each fault of the lists (tests/mutation/*.txt) into the library. One of the tests that
# the row of the fault names must then fail. Without a fault, all these tests must pass.
#
# A row is: FILE | OLD | NEW | TESTS
# FILE is below include/gatefold, OLD occurs exactly once in it, NEW replaces OLD, and TESTS are files below tests/,
# separated by spaces. Empty lines and lines that begin with # are skipped. The output has one line per fault:
#   caught            a test fails.
#   STALE             the header no longer contains OLD once. Write the code that replaced it into the row, and run the
#                     list again. Delete the row if the fault is no longer possible.
#   MISSED            no test fails. Add a test to the test file that the row names.
#   DOES NOT COMPILE  the header with NEW does not compile. Correct the row.
# GATEFOLD_MUTATION_COMPILER is the compiler (g++ if not set), GATEFOLD_MUTATION_FLAGS are more flags for it, and
# GATEFOLD_MUTATION_TIMEOUT is the time limit of a test in seconds.
set -u
root=$1 eigen=$2
shift 2
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
flags=(-std=c++20 -O0 -w -pthread -isystem "$eigen" -DGATEFOLD_TEST_DIR="\"$root/tests\"")
read -ra more <<<"${GATEFOLD_MUTATION_FLAGS-}"
flags+=("${more[@]}")  # for example -march, if the faults are in code for one instruction set
compiler=${GATEFOLD_MUTATION_COMPILER:-g++}
limit=${GATEFOLD_MUTATION_TIMEOUT:-100}  # seconds for one test, because a fault can cause an endless loop

# Headers of other libraries are read once, in a precompiled header.
printf '#include <%s>\n' doctest/doctest.h Eigen/Core algorithm array atomic cmath cstdint filesystem fstream \
  functional map memory numeric random sstream string thread vector >"$dir/others.hpp"
"$compiler" "${flags[@]}" -x c++-header "$dir/others.hpp" -o "$dir/others.hpp.gch" &
"$compiler" "${flags[@]}" -c "$root/tests/main.cpp" -o "$dir/main.o" || exit 1
printf '#include "support/counted_allocations.hpp"\n' |
  "$compiler" "${flags[@]}" -I"$root/tests" -x c++ -c - -o "$dir/counted.o" || exit 1
wait

# build_and_run FOLDER TEST: returns 0 if the test passes, 3 if it does not compile, another number if it fails. The
# compiler reads the headers in FOLDER/gatefold instead of those in ROOT/include.
build_and_run() {
  local main=("$dir/main.o")
  grep -q counted_allocations.hpp "$root/tests/$2" || main+=("$dir/counted.o")  # only one source may include it
  [[ $2 == data/* ]] && main+=(-lz)
  "$compiler" "${flags[@]}" -include "$dir/others.hpp" -I"$1" -I"$root/include" -I"$root/tests" "$root/tests/$2" \
    "${main[@]}" -o "$1/test" 2>"$1/log" || return 3
  (cd "$1" && timeout "$limit" ./test --abort-after=1 >out 2>&1)
  set -- "$1" $?
  rm "$1/test"
  return "$2"
}
fault() {  # FOLDER FILE FROM TO TESTS
  local from=$root/include/gatefold/$2 text test
  if [ "$(grep -cF -- "$3" "$from")" -ne 1 ]; then echo "STALE: $2: does not contain exactly once: $3"; return; fi
  mkdir -p "$(dirname "$1/gatefold/$2")"
  text=$(<"$from")
  printf '%s\n' "${text/"$3"/"$4"}" >"$1/gatefold/$2"
  for test in $5; do
    build_and_run "$1" "$test"
    case $? in
      0) continue ;;
      3) grep -q -E 'static.assert(ion)? failed' "$1/log" && echo "caught: $2: $3 ($test, compiling)" ||
           echo "DOES NOT COMPILE: $2: $3: $(grep -m1 error "$1/log")" ;;
      *) echo "caught: $2: $3 ($test)" ;;
    esac
    return
  done
  echo "MISSED: $2: $3 ($5)"
}
sound() {  # FOLDER TEST
  build_and_run "$1" "$2" || { echo "without a fault $2 fails:"; cat "$1/log"; tail -n 20 "$1/out"; }
}
next() {  # waits for a free processor and makes a folder for the next job
  (($(jobs -rp | wc -l) < $(nproc))) || wait -n
  mkdir "$dir/$((++jobs))"
}
jobs=0 n=0
while read -r test; do
  next
  sound "$dir/$jobs" "$test" &
done < <(grep -hv -e '^#' -e '^$' "$@" | sed 's/.* | //' | tr ' ' '\n' | sort -u) >"$dir/unsound"
wait
if [ -s "$dir/unsound" ]; then cat "$dir/unsound"; exit 1; fi
while IFS= read -r line; do
  file=${line%% | *} line=${line#* | }
  from=${line%% | *} line=${line#* | }
  next
  fault "$dir/$jobs" "$file" "$from" "${line%% | *}" "${line#* | }" &
  n=$((n + 1))
done < <(grep -hv -e '^#' -e '^$' "$@") >"$dir/result"
wait
sort "$dir/result"
caught=$(grep -c '^caught' "$dir/result")
echo "$caught of $n faults caught"
[ "$caught" -eq "$n" ]
