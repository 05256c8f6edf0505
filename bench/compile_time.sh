#!/usr/bin/env bash
# Seconds to compile the program of the README, and the slowest test file of the last build in build/test.
# usage: bash bench/compile_time.sh OUTPUT.json
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
log=$root/build/test/.ninja_log
object=$(mktemp --suffix .o)
trap 'rm -f "$object"' EXIT

TIMEFORMAT=%U  # of the processor, whatever else runs
seconds=$({ time g++ -std=c++20 -O3 -march=native -DNDEBUG -fopenmp -I"$root/include" -isystem /usr/include/eigen3 \
  -c "$root/examples/quickstart.cpp" -o "$object"; } 2>&1)
rows="{\"name\": \"compile_time/quickstart\", \"real_time\": $seconds, \"time_unit\": \"s\"}"

if [[ -f $log ]]; then
  # Begin and end in milliseconds, time stamp, output, hash; a later line of an output replaces an earlier one.
  slowest=$(awk -F '\t' '/_test.cpp.o\t/ { took[$4] = ($2 - $1) / 1000 }
    END { for (o in took) if (took[o] > most) { most = took[o]; file = o }
          sub(".*[.]dir/", "", file)
          if (file) printf "{\"name\": \"compile_time/slowest_test/%s\", \"real_time\": %.2f, \"time_unit\": \"s\"}",
                           file, most }' "$log")
  [[ -n $slowest ]] && rows+=", $slowest"
fi
echo "{\"context\": {}, \"benchmarks\": [$rows]}" >"$1"
