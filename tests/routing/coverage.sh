#!/usr/bin/env bash
# coverage.sh ROOT COMPILER EIGEN DOCTEST: compiles the differential test of routing with g++ and gcov. In each header
# that it tests, the test must run at least 98 % of the lines. Prints the lines that it does not run.
root=$1 compiler=$2 eigen=$3 doctest=$4
at=$(mktemp -d) || exit 1
trap 'rm -rf "$at"' EXIT
cd "$at" || exit 1
"$compiler" -std=c++20 -O0 --coverage -I"$root/include" -I"$root/tests" -isystem "$eigen" \
  ${doctest:+-isystem "$doctest"} \
  "$root/tests/routing/differential_test.cpp" "$root/tests/main.cpp" -o routing || exit 1
./routing --no-colors || exit 1
gcov routing-differential_test.gcda >/dev/null 2>&1 || { echo "no gcov for $compiler"; exit 1; }
bad=0 seen=0
for header in "$root"/include/gatefold/{routing/*,backend/group*,gate/selection/capacity}.hpp; do
  [[ -f ${header##*/}.gcov ]] || { echo "${header##*/}: the test runs no line of it"; bad=1; continue; }
  # gcov lists a line of a template once for each instance. The line counts if one instance ran it.
  awk -F: -v name="${header##*/}" '
    { count = $1; line = $2 + 0; gsub(/[ \t]/, "", count) }
    line == 0 || count == "-" || count == "" { next }
    { known[line] = 1; text[line] = $0; sub(/^[^:]*:[^:]*:/, "", text[line]); if (count !~ /^[#=]/) reached[line] = 1 }
    END {
      for (l in known) { ++all; if (l in reached) ++some; else missed = missed "\n  " l ": " text[l] }
      printf "%s: %d of %d lines%s\n", name, some, all, missed
      exit some < 0.98 * all
    }' "${header##*/}.gcov" || bad=1
  seen=$((seen + 1))
done
((bad == 0 && seen >= 6))
