#!/usr/bin/env bash
# test.sh PROGRAM cpu|cuda: the command line of fashion_mnist on a small made-up data set: the same bits on any number of threads,
# checkpoints, and one clear line with exit code 2 for whatever does not fit.
set -u
program=$1 built_for=$2
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
failed=0
fail() { echo "FAILED: $*" >&2; failed=1; }

source "$(dirname "$0")/make_half.sh"
mkdir "$dir/data"
make_half "$dir/data/train" 320
make_half "$dir/data/t10k" 100

run() { "$program" --data "$dir/data" --batch 32 --dim 16 --hidden 16 --epochs 2 --picture "" "$@" >"$dir/out" 2>"$dir/err"; }
# What does not depend on the clock or the number of threads.
stable() { grep -vE '"(train_seconds|images_per_second|threads)"' "$1"; }

for update in plain heavy-ball; do
  for gate in softmax dense; do
    run --update $update --gate $gate --threads 1 --json "$dir/1.json" --save "$dir/1.st" || fail "$update $gate: $(cat "$dir/err")"
    run --update $update --gate $gate --threads 2 --json "$dir/2.json" --save "$dir/2.st" || fail "$update $gate on 2 threads"
    cmp -s "$dir/1.st" "$dir/2.st" || fail "$update $gate: other parameters on 2 threads"
    cmp -s <(stable "$dir/1.json") <(stable "$dir/2.json") || fail "$update $gate: other metrics on 2 threads"
  done
done
for key in test_accuracy train_seconds parameters seed threads layers expert_tokens; do
  grep -q "\"$key\"" "$dir/1.json" || fail "metrics lack $key"
done

run --json "$dir/base.json" --save "$dir/base.st" || fail "base run"
accuracy=$(grep '"test_accuracy":' "$dir/base.json")
run --epochs 0 --load "$dir/base.st" --json "$dir/again.json" --save "" || fail "evaluate: $(cat "$dir/err")"
[ "$accuracy" = "$(grep '"test_accuracy":' "$dir/again.json")" ] || fail "a loaded checkpoint evaluates differently"
run --epochs 1 --load "$dir/base.st" --json "" --save "$dir/more.st" || fail "continue: $(cat "$dir/err")"
cmp -s "$dir/base.st" "$dir/more.st" && fail "continuing changed nothing"

# refused WHAT PATTERN OPTION...: exit code 2, one line on stderr that matches, nothing overwritten.
refused() {
  local what=$1 pattern=$2
  shift 2
  echo keep >"$dir/keep.json"; echo keep >"$dir/keep.st"
  run --json "$dir/keep.json" --save "$dir/keep.st" "$@"
  local code=$?
  [ $code -eq 2 ] || fail "$what: exit code $code"
  [ "$(wc -l <"$dir/err")" -eq 1 ] || fail "$what: $(wc -l <"$dir/err") lines on stderr: $(head -c 300 "$dir/err")"
  grep -qE "$pattern" "$dir/err" || fail "$what: $(cat "$dir/err")"
  [ "$(cat "$dir/keep.json" "$dir/keep.st")" = $'keep\nkeep' ] || fail "$what: overwrote an output"
}
refused "missing data" "nowhere/train-images.*neither" --data "$dir/nowhere"
mkdir "$dir/cut" && cp "$dir"/data/* "$dir/cut" && truncate -s 5000 "$dir/cut/train-images-idx3-ubyte"
refused "truncated data" "cut/train-images-idx3-ubyte: offset 5000" --data "$dir/cut"
mkdir "$dir/junk" && cp "$dir"/data/* "$dir/junk" && head -c 3000 /dev/urandom >"$dir/junk/t10k-labels-idx1-ubyte"
refused "damaged data" "junk/t10k-labels-idx1-ubyte" --data "$dir/junk"
refused "unknown option" "nonsense" --nonsense 3
refused "a word for a number" "experts" --experts many
refused "unknown gate" "gate" --gate best
refused "unknown backend" "backend" --backend tpu
[ "$built_for" = cuda ] || refused "cuda without CUDA" "backend cuda: .*built without CUDA.*GATEFOLD_CUDA=ON" --backend cuda
refused "k > experts" "k: expected at most --experts = 4, got 5" --experts 4 --k 5
refused "no experts" "experts" --experts 0
refused "batch larger than the data" "batch" --batch 4096
refused "checkpoint of another shape" "expected \[4," --load "$dir/base.st" --experts 4
refused "checkpoint of another rule" "update = plain" --load "$dir/base.st" --update plain
refused "missing checkpoint" "nowhere.st" --load "$dir/nowhere.st"
head -c 1000 "$dir/base.st" >"$dir/short.st"
refused "truncated checkpoint" "short.st" --load "$dir/short.st"
head -c 2000 /dev/urandom >"$dir/junk.st"
refused "garbage for a checkpoint" "junk.st" --load "$dir/junk.st"
refused "no folder for the picture" "no folder" --picture "$dir/nowhere/a.svg"
"$program" --help | grep -q -- --experts || fail "--help"
[ $failed -eq 0 ] && echo "all checks passed"
exit $failed
