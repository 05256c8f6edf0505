#!/usr/bin/env bash
# Seconds of the processor to compile the program of the README, and the slowest test file of the last build in build/test.
# usage: bash bench/compile_time.sh OUTPUT.json
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
log=$root/build/test/.ninja_log
object=$(mktemp --suffix .o)
file=""
trap 'rm -f "$object" "$object.d"' EXIT

TIMEFORMAT=%U  # of the processor, whatever else runs
seconds=$({ time g++ -std=c++20 -O3 -march=native -DNDEBUG -fopenmp -I"$root/include" -isystem /usr/include/eigen3 \
  -c "$root/examples/quickstart.cpp" -o "$object"; } 2>&1)
rows="{\"name\": \"compile_time/quickstart\", \"real_time\": $seconds, \"time_unit\": \"s\"}"

if [[ -f $log ]]; then
  # Begin and end in milliseconds, time stamp, output, hash; a later line of an output replaces an earlier one. These tell elapsed
  # time, with whatever else ran: the three longest are compiled again.
  most=0
  for output in $(awk -F '\t' '/_test.cpp.o\t/ { took[$4] = $2 - $1 } END { for (o in took) print took[o], o }' "$log" |
    sort -rn | head -3 | cut -d ' ' -f 2); do
    command=$(ninja -C "$root/build/test" -t commands "$output" | tail -1)
    command=${command//"$output"/"$object"}
    seconds=$({ time (cd "$root/build/test" && CCACHE_DISABLE=1 bash -c "$command") } 2>&1 | tail -1)
    if awk "BEGIN { exit !($seconds > $most) }"; then most=$seconds file=${output##*.dir/}; fi
  done
  ((${#file})) && rows+=", {\"name\": \"compile_time/slowest_test/$file\", \"real_time\": $most, \"time_unit\": \"s\"}"
fi
echo "{\"context\": {}, \"benchmarks\": [$rows]}" >"$1"
