#!/usr/bin/env bash
# test_cuda.sh PROGRAM: fashion_mnist trains the same network on CUDA as on the CPU, up to rounding, and a checkpoint of
# one backend can be continued on the other.
set -u
program=$1
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
fail() { echo "FAILED: $*: $(cat "$dir/err")" >&2; exit 1; }

source "$(dirname "$0")/make_half.sh"
make_half "$dir/train" 48
make_half "$dir/t10k" 20

run() {
  "$program" --data "$dir" --batch 24 --patch 14 --dim 8 --hidden 8 --experts 3 --epochs 1 --picture "" --save "" "$@" \
    >"$dir/out" 2>"$dir/err" || fail "$*"
}
# All numbers of the metrics except times, one per line.
numbers() { grep -vE '"(train_seconds|images_per_second|threads)"' "$1" | grep -oE '[-+0-9.]+(e[-+0-9]+)?' ; }
same() {
  paste <(numbers "$1") <(numbers "$2") |
    awk '{ d = $1 - $2; if (NF != 2 || d * d > 1e-8 * (1 + $1 * $1)) { print; bad = 1 } }
    END { exit bad || NR < 20 }' || fail "$1 and $2 differ"
}

run --backend cpu --json "$dir/cpu.json" --save "$dir/cpu.st"
run --backend cuda --json "$dir/cuda.json" --save "$dir/cuda.st"
same "$dir/cpu.json" "$dir/cuda.json"
run --backend cpu --load "$dir/cuda.st" --json "$dir/cpu_after_cuda.json"
run --backend cuda --load "$dir/cpu.st" --json "$dir/cuda_after_cpu.json"
same "$dir/cpu_after_cuda.json" "$dir/cuda_after_cpu.json"
