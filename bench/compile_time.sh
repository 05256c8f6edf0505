#!/usr/bin/env bash
# Seconds of the processor to compile the program of the README, and the slowest of the largest test files built in build/test.
# usage: bash bench/compile_time.sh OUTPUT.json
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
tests=$root/build/test
object=$(mktemp --suffix .o)
file=""
trap 'rm -f "$object" "$object.d"' EXIT

TIMEFORMAT=%U  # of the processor, whatever else runs
seconds=$({ time g++ -std=c++20 -O3 -march=native -DNDEBUG -I"$root/include" -isystem /usr/include/eigen3 \
  -c "$root/examples/quickstart.cpp" -o "$object"; } 2>&1)
rows="{\"name\": \"compile_time/quickstart\", \"real_time\": $seconds, \"time_unit\": \"s\"}"

if [[ -d $tests ]]; then
  # What a build took tells what else ran, and what a compiler cache knew: the three largest are compiled again.
  most=0
  for output in $(find "$tests" -name '*_test.cpp.o' -printf '%s %P\n' | sort -rn | head -3 | cut -d ' ' -f 2); do
    command=$(ninja -C "$tests" -t commands "$output" | tail -1)
    command=${command//"$output"/"$object"}
    seconds=$({ time (cd "$tests" && CCACHE_DISABLE=1 bash -c "$command") } 2>&1 | tail -1)
    if awk "BEGIN { exit !($seconds > $most) }"; then most=$seconds file=${output##*.dir/}; fi
  done
  ((${#file})) && rows+=", {\"name\": \"compile_time/slowest_test/$file\", \"real_time\": $most, \"time_unit\": \"s\"}"
fi
echo "{\"context\": {}, \"benchmarks\": [$rows]}" >"$1"
