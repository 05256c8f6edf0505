#!/usr/bin/env bash
# Seconds of the processor to compile the program of the README and the networks of examples/language_model, all seven
# and one of them, header-only and with gatefold::kernels, the library of these itself, and the slowest of the largest test
# files built in build/test.
# usage: bash bench/compile_time.sh OUTPUT.json
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
tests=$root/build/test
object=$(mktemp --suffix .o)
one_network=$(mktemp --suffix .cpp)
file="" rows=""
trap 'rm -f "$object" "$object.d" "$one_network"' EXIT
cat >"$one_network" <<'END'
#include <gatefold/gatefold.hpp>

#include "language_model/network.hpp"

std::unique_ptr<language::Model> language::make_model(const Options& o, Index vocabulary) {
  const update::HeavyBall rule{.mu = o.mu, .gamma = o.gamma};
  return std::make_unique<Network<Cpu, update::HeavyBall, OneProcess>>(o, vocabulary, rule, OneProcess{});
}
END

TIMEFORMAT=%U  # of the processor, whatever else runs
compiler=(g++ -std=c++20 -O3 -march=native -DNDEBUG -I"$root/include" -I"$root/examples" -isystem /usr/include/eigen3)
set=$(echo GATEFOLD_CPU_ABI | "${compiler[@]}" -include gatefold/backend/cpu/instruction_set.hpp -x c++ -E -P - |
  tail -1)
add() {  # NAME COMMAND...
  local seconds
  seconds=$({ time "${@:2}" >/dev/null; } 2>&1 | tail -1)
  rows+="${rows:+, }{\"name\": \"compile_time/$1\", \"real_time\": $seconds, \"time_unit\": \"s\"}"
}
kernels=("-DGATEFOLD_KERNELS=\" $set \"")
programs=("quickstart $root/examples/quickstart.cpp"
          "language_model/networks $root/examples/language_model/networks.cpp"
          "language_model/one_network $one_network")
for program in "${programs[@]}"; do
  read -r name source <<<"$program"
  add "$name" "${compiler[@]}" -c "$source" -o "$object"
  add "$name/kernels" "${compiler[@]}" "${kernels[@]}" -DGATEFOLD_KERNELS_IO -c "$source" -o "$object"
done
add kernels "${compiler[@]}" "${kernels[@]}" -c "$root/cmake/gatefold_kernels.cpp" -o "$object"
add kernels_io "${compiler[@]}" -c "$root/cmake/gatefold_kernels_io.cpp" -o "$object"

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
