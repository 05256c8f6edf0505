#!/usr/bin/env bash
# faults.sh ROOT: checks the rows of tests/mutation/*.txt. The text that a row replaces must occur exactly once in its
# header, and the tests that the row names must exist. Also checks the faults of CUDA headers: the text that a
# gatefold_cuda_mutant of tests/cuda_build/CMakeLists.txt replaces must occur in its header. Prints "file:line: rule:
# text" for each mistake and fails if there is one.
cd "$1" || exit 2
status=0
report() { echo "$1: $2: $3"; status=1; }
while IFS= read -r found; do
  place=${found%%:*} found=${found#*:}
  place+=:${found%%:*} row=${found#*:}
  header=include/gatefold/${row%% | *} rest=${row#* | }
  [[ $(grep -cF -- "${rest%% | *}" "$header" 2>/dev/null) == 1 ]] || report "$place" stale "$row"
  rest=${rest#* | }
  read -ra tests <<<"${rest#* | }"
  for test in "${tests[@]}"; do [[ -f tests/$test ]] || report "$place" no-test "$test"; done
done < <(grep -nHvE '^(#|$)' tests/mutation/*.txt)
mutant='gatefold_cuda_mutant\(([a-z0-9_]+) [a-z0-9_]+ "([^"]*)"'
while IFS= read -r found; do
  [[ $found =~ $mutant ]] || continue
  grep -qF -- "${BASH_REMATCH[2]}" "include/gatefold/backend/cuda/${BASH_REMATCH[1]}.cuh" 2>/dev/null ||
    report "tests/cuda_build/CMakeLists.txt:${found%%:*}" stale "${BASH_REMATCH[0]}"
done < <(grep -n '^ *gatefold_cuda_mutant(' tests/cuda_build/CMakeLists.txt)
exit $status
