#!/usr/bin/env bash
# Profiles the rows that miss their goals, each by itself, with perf. Writes only below build/.
# usage: bash bench/profile.sh [ROW...]    ROW as in the tables: layer_forward/T:4096/D:512/H:2048/E:8/K:2
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
source "$root/cmake/install_packages.sh"
install_packages g++ cmake ninja-build libeigen3-dev libbenchmark-dev || exit 1
command -v perf >/dev/null ||
  { echo "bench/profile.sh: perf is not installed (Debian: linux-perf)" >&2; exit 1; }
cd "$root"
rows=("$@")
((${#rows[@]})) || rows=(
  layer_forward/T:{4096/D:512/H:2048/E:8,4096/D:352/H:352/E:16,512/D:512/H:2048/E:8}/K:2
  layer_forward/T:{4096/D:512/H:2048/E:64,8192/D:64/H:128/E:64}/K:2
  layer_train/T:{4096/D:352/H:352/E:16,512/D:512/H:2048/E:8,4096/D:512/H:2048/E:64}/K:2
  layer_train/T:{16/D:512/H:2048/E:8,1/D:512/H:2048/E:8}/K:2
  layer_decode/T:16/D:512/H:2048/E:8/K:2 decode_frozen/T:16/D:512/H:2048/E:8/K:2
  layer_rule/{Plain,HeavyBall,Adam}/T:4096/D:352/H:352/E:16/K:2
  layer_mixing/{AttentionAware,AttentionAwareSequence}/T:4096/D:352/H:352/E:16/K:2
)

mkdir -p build/bench
cmake --preset release -DGATEFOLD_BUILD_BENCH=ON >build/release.log || { cat build/release.log; exit 1; }
cmake --build --preset release --target bench_profile
data=$(mktemp)
trap 'rm -f "$data" "$data.old"' EXIT

# Maps patterns of function names to parts of the library; the first match counts. Functions that fill the weights are
# left out.
parts='
  /Uniform|clear_page|uniform_tensor/ { next }
  /sum_tile|amx_sum|rank_update/ { add("products"); next }
  /pack_panels|transpose_block|::pack\(/ { add("packing"); next }
  /copy_block|pack_rows|PairTask/ { add("rows"); next }
  /HiddenEpilogue</ { add("activation"); next }
  /Epilogue</ { add("results"); next }
  /Combine|RowThen/ { add("combine"); next }
  /Route|Softmax|Pick|Slots|group_by|gemm_rows/ { add("routing"); next }
  /Workers|\[k\]/ { add("waiting"); next }
  { add("rest") }'
columns="products packing rows activation results combine routing waiting rest"
{
  echo "| row | ${columns// / | } |"
  echo "|---|${columns//[a-z ]/}$(for column in $columns; do printf -- '---|'; done)"
} | tee build/bench/profile.md
for row in "${rows[@]}"; do
  perf record -q -e cpu-clock -F 4000 -D 2000 -o "$data" build/release/bench/profile "$row" 5 >/dev/null
  perf report -i "$data" --no-children --stdio -q -F overhead,dso,symbol --percent-limit 0 2>/dev/null |
    grep -v '^ *$' |
    awk -v row="$row" -v columns="$columns" '
      function add(part) { of[part] += $1; all += $1 }
      '"$parts"'
      END {
        n = split(columns, names, " ")
        printf "| %s |", row
        for (i = 1; i <= n; ++i) printf " %.1f |", 100 * of[names[i]] / all
        print ""
      }' | tee -a build/bench/profile.md
done
