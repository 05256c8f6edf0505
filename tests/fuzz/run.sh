#!/usr/bin/env bash
# run.sh TARGET SECONDS [FOLDER [PROGRAM]]: runs the corpus of a target of tests/fuzz/ with clang's libFuzzer and the
# address and undefined-behaviour sanitizers, then new inputs for SECONDS seconds. Inputs that fail are left in FOLDER
# (by default a temporary folder). PROGRAM contains all targets and was built by `run.sh build PROGRAM [EIGEN
# [OPTIMISATION]]`, where EIGEN is the folder of Eigen's headers; without PROGRAM, the script builds the program first.
# Exits with 77 if clang++ or libFuzzer is missing.
set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
flags=(-fsanitize=fuzzer,address,undefined)

build() {  # PROGRAM [EIGEN [OPTIMISATION]]
  rm -f "$1"
  command -v clang++ >/dev/null || { echo "skipped: no clang++"; exit 77; }
  echo 'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }' |
    clang++ "${flags[@]}" -x c++ - -o "$1" 2>/dev/null ||
    { rm -f "$1"; echo "skipped: no libFuzzer (Debian: libclang-rt-14-dev)"; exit 77; }
  local cache=()
  command -v ccache >/dev/null && cache=(ccache)
  "${cache[@]}" clang++ -std=c++20 "${3:--O1}" -g1 "${flags[@]}" -fno-sanitize-recover=all -Wall -Wextra -Werror \
    -I"$root/include" -I"$root/tests" -I"$root/examples" \
    -isystem "${2:-/usr/include/eigen3}" -DGATEFOLD_TEST_DIR="\"$root/tests\"" \
    -c "$root/tests/fuzz/all.cpp" -o "$1.o" &&
    clang++ "${flags[@]}" "$1.o" -lz -o "$1" || exit 1
}
if [[ $1 == build ]]; then
  mkdir -p "$(dirname "$2")"
  build "${@:2}"
  exit
fi

target=$1 seconds=$2 out=${3:-} program=${4:-}
if [[ -z $out ]]; then
  out=$(mktemp -d) && trap 'rm -rf "$out"' EXIT
fi
mkdir -p "$out/new" || exit 1
if [[ -z $program ]]; then
  program=$out/all
  build "$program"
fi
[[ -x $program ]] || { echo "skipped: $program was not built"; exit 77; }
ln -sf "$(realpath "$program")" "$out/$target"
begin=$SECONDS
"$out/$target" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=1024 -max_len=16384 -use_value_profile=1 \
  -close_fd_mask=1 -artifact_prefix="$out/" -print_final_stats=1 "$out/new" "$root/tests/fuzz/corpus/$target" \
  2>"$out/log"
rc=$?
if ((rc)); then
  tail -n 40 "$out/log"
  for found in "$out"/{crash,leak,timeout,oom}-*; do
    [[ -f $found ]] && { echo "$found:"; base64 -w0 "$found" | head -c 8000; echo; }
  done
  exit 1
fi
grep number_of_executed_units "$out/log"
echo "$target: no fault in $((SECONDS - begin)) s"
