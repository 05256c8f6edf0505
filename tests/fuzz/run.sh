#!/usr/bin/env bash
# run.sh TARGET SECONDS [FOLDER]: build tests/fuzz/TARGET.cpp with clang's libFuzzer and the address and undefined-behaviour
# sanitizers, run the corpus, then new inputs for SECONDS. What it finds is left in FOLDER (a temporary one if not given).
# Exits 77 where clang++ or libFuzzer is not there.
set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
target=$1 seconds=$2 out=${3:-}
command -v clang++ >/dev/null || { echo "skipped: no clang++"; exit 77; }
if [[ -z $out ]]; then
  out=$(mktemp -d) && trap 'rm -rf "$out"' EXIT
fi
mkdir -p "$out/new" || exit 1
flags=(-fsanitize=fuzzer,address,undefined)
echo 'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }' |
  clang++ "${flags[@]}" -x c++ - -o "$out/probe" 2>/dev/null || { echo "skipped: no libFuzzer (Debian: libclang-rt-14-dev)"; exit 77; }
cache=()
command -v ccache >/dev/null && cache=(ccache)
"${cache[@]}" clang++ -std=c++20 -O1 -g1 "${flags[@]}" -fno-sanitize-recover=all -Wall -Wextra -Werror -I"$root/include" \
  -I"$root/tests" -I"$root/examples" -c "$root/tests/fuzz/$target.cpp" -o "$out/$target.o" &&
  clang++ "${flags[@]}" "$out/$target.o" -lz -o "$out/$target" || exit 1
begin=$SECONDS
"$out/$target" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=1024 -max_len=16384 -use_value_profile=1 -close_fd_mask=1 \
  -artifact_prefix="$out/" -print_final_stats=1 "$out/new" "$root/tests/fuzz/corpus/$target" 2>"$out/log"
rc=$?
if ((rc)); then
  tail -n 40 "$out/log"
  for found in "$out"/{crash,leak,timeout,oom}-*; do [[ -f $found ]] && { echo "$found:"; base64 -w0 "$found" | head -c 8000; echo; }; done
  exit 1
fi
grep number_of_executed_units "$out/log"
echo "$target: no fault in $((SECONDS - begin)) s"
