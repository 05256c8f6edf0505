#!/usr/bin/env bash
# test.sh PROGRAM [LAUNCHER FLAG]: tests fashion_mnist on a small made-up data set.
# - The bits are the same on any number of threads. On shards, they are also the same on any number R of processes. The
#   command LAUNCHER FLAG R starts R processes, for example mpirun -n R.
# - Checkpoints work.
# - Wrong options and files give one clear line and exit code 2.
program=$1
source "$(dirname "$0")/../checks.sh"
source "$(dirname "$0")/make_half.sh"
mkdir "$dir/data"
make_half "$dir/data/train" 320
make_half "$dir/data/t10k" 100

run() {
  "$program" --data "$dir/data" --batch 32 --dim 16 --hidden 16 --epochs 2 --picture "" "$@" >"$dir/out" 2>"$dir/err"
}
# The lines that do not depend on the clock or the number of threads.
stable() { grep -vE '"(train_seconds|images_per_second|threads)"' "$1"; }

for update in plain heavy-ball; do
  for gate in softmax dense; do
    run --update $update --gate $gate --threads 1 --json "$dir/1.json" --save "$dir/1.st" ||
      fail "$update $gate: $(cat "$dir/err")"
    run --update $update --gate $gate --threads 2 --json "$dir/2.json" --save "$dir/2.st" ||
      fail "$update $gate on 2 threads"
    cmp -s "$dir/1.st" "$dir/2.st" || fail "$update $gate: the parameters on 2 threads differ"
    cmp -s <(stable "$dir/1.json") <(stable "$dir/2.json") || fail "$update $gate: the metrics on 2 threads differ"
  done
done
# Experts that multiply bfloat16 give other numbers than float, but the same on any number of threads. Their checkpoint
# stores floats, so that `cpu` can continue from it.
run --backend cpu-bf16 --threads 1 --json "" --save "$dir/half1.st" || fail "cpu-bf16: $(cat "$dir/err")"
run --backend cpu-bf16 --threads 2 --json "" --save "$dir/half2.st" || fail "cpu-bf16 on 2 threads"
run --json "" --save "$dir/float.st" || fail "cpu"
cmp -s "$dir/half1.st" "$dir/half2.st" || fail "cpu-bf16: the parameters on 2 threads differ"
cmp -s "$dir/half1.st" "$dir/float.st" && fail "cpu-bf16: the parameters are those of cpu"
run --epochs 3 --load "$dir/half1.st" --json "" --save "" ||
  fail "cpu does not continue from a checkpoint of cpu-bf16: $(cat "$dir/err")"

for key in test_accuracy train_seconds parameters seed threads layers expert_tokens; do
  grep -q "\"$key\"" "$dir/1.json" || fail "metrics lack $key"
done

run --json "$dir/base.json" --save "$dir/base.st" || fail "base run"
accuracy=$(grep '"test_accuracy":' "$dir/base.json")
run --epochs 0 --load "$dir/base.st" --json "$dir/again.json" --save "" || fail "evaluate: $(cat "$dir/err")"
[ "$accuracy" = "$(grep '"test_accuracy":' "$dir/again.json")" ] || fail "a loaded checkpoint evaluates differently"
run --epochs 3 --load "$dir/base.st" --json "" --save "$dir/more.st" || fail "continue: $(cat "$dir/err")"
cmp -s "$dir/base.st" "$dir/more.st" && fail "continuing changed nothing"
# 20 steps at once give the same bits as runs that are stopped within an epoch, at its end, or twice. They continue with
# another number of threads and another seed on the command line.
for stops in 1 7 10 "13 19"; do
  load=()
  for stop in $stops 0; do
    run "${load[@]}" --steps $stop --threads $((stop % 2 + 1)) --seed $((42 + ${#load[@]})) --json "" \
      --save "$dir/part.st" ||
      fail "stopped at $stops: $(cat "$dir/err")"
    load=(--load "$dir/part.st")
  done
  cmp -s "$dir/base.st" "$dir/part.st" || fail "stopped at $stops, then continued: the bits differ"
done

# A run on three shards has the same bits in 1 to 3 processes, also if it is stopped and continued.
on_shards() {
  local processes=()
  (($1 > 0)) && processes=("${launcher[@]}" "$1")
  timeout 120 "${processes[@]}" "$program" --data "$dir/data" --batch 32 --dim 16 --hidden 16 --epochs 2 --picture "" \
    --shards 3 "${@:2}" >"$dir/out" 2>"$dir/err" </dev/null || fail "on shards, $*: $(cat "$dir/err")"
}
launcher=("${@:2}")
counts=(0)
((${#launcher[@]} == 0)) || counts=(1 2 3)
for processes in "${counts[@]}"; do
  on_shards $processes --threads $((processes % 2 + 1)) --json "$dir/shards.json" --save "$dir/shards$processes.st"
  cmp "$dir/shards$processes.st" "$dir/shards${counts[0]}.st" || fail "on shards: $processes processes: bits differ"
  [ "$(grep -c "^epoch" "$dir/out")" -eq 2 ] || fail "on shards: printed $(cat "$dir/out")"
  cp "$dir/shards.json" "$dir/shards$processes.json"
  cmp -s <(stable "$dir/shards$processes.json") <(stable "$dir/shards${counts[0]}.json") ||
    fail "on shards: the metrics on $processes processes differ"
done
on_shards "${counts[0]}" --steps 7 --json "" --save "$dir/part.st"
on_shards "${counts[-1]}" --load "$dir/part.st" --json "" --save "$dir/part.st"
cmp "$dir/part.st" "$dir/shards${counts[0]}.st" || fail "on shards: stopped, then continued: the bits differ"
run --epochs 0 --load "$dir/part.st" --json "$dir/again.json" --save "" || fail "evaluate a run on shards"
[ "$(grep '"test_accuracy":' "$dir/shards.json")" = "$(grep '"test_accuracy":' "$dir/again.json")" ] ||
  fail "a run on shards evaluates differently in one process"

# refused WHAT PATTERN OPTION...: expects exit code 2, one line on stderr that matches, and no overwritten file.
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
refused "shards of another rule" "shards: expected backend cpu and update heavy-ball" --shards 2 --update plain
refused "unknown gate" "gate" --gate best
refused "unknown backend" "backend" --backend tpu
[[ ${GATEFOLD_BUILT_FOR-cpu} == cuda ]] ||
  refused "cuda without CUDA" "backend cuda: .*built without CUDA.*GATEFOLD_CUDA=ON" --backend cuda
refused "k > experts" "k: expected at most --experts = 4, got 5" --experts 4 --k 5
refused "a rate that is no number" "lr: Value nan is no number above 0" --lr nan
refused "an infinite rate" "lr: Value inf is no number above 0" --lr inf
refused "a negative rate" "lr: Value -1e-3 is no number above 0" --lr -1e-3
refused "a rate beyond double" "lr: Value 1e999 is no number above 0" --lr 1e999
refused "a balance that is no number" "balance: Value nan is no number from 0 on" --balance nan
refused "a seed beyond 64 bits" "seed: Value 18446744073709551616 is no whole number" --seed 18446744073709551616
refused "a negative seed" "seed: Value -1 is no whole number" --seed -1
refused "steps beyond 64 bits" "steps: Value 99999999999999999999 not in range" --steps 99999999999999999999
refused "negative steps" "steps: Value -1 not in range" --steps -1
refused "epochs beyond 64 bits" "epochs: Value 99999999999999999999 not in range" --epochs 99999999999999999999
refused "absurd sizes" "memory|elements" --dim 1048576 --hidden 1048576 --experts 1048576 --k 1
refused "sizes beyond the memory" "not enough memory for these sizes" --dim 1048576 --hidden 262144
(ulimit -v 1000000; refused "layers" "not enough memory for these sizes" --layers 1048576; exit $failed) || failed=1
echo keep >"$dir/keep.st"
run --lr 1e30 --json "" --save "$dir/keep.st"  # stderr also has progress
[ $? -eq 2 ] && tail -n 1 "$dir/err" | grep -q "^fashion_mnist: Trainer.step: .*no parameter was changed" &&
  [ "$(cat "$dir/keep.st")" = keep ] ||
  fail "a rate under which training diverges: $(tail -n 1 "$dir/err")"
refused "no experts" "experts" --experts 0
refused "batch larger than the data" "batch" --batch 4096
refused "checkpoint of another shape" "expected \[4," --load "$dir/base.st" --experts 4
refused "checkpoint of another rule" "update = plain" --load "$dir/base.st" --update plain
refused "another batch to go on with" "metadata: expected batch = 16, got 32" \
  --load "$dir/base.st" --epochs 3 --batch 16
refused "missing checkpoint" "nowhere.st" --load "$dir/nowhere.st"
head -c 1000 "$dir/base.st" >"$dir/short.st"
refused "truncated checkpoint" "short.st" --load "$dir/short.st"
sed 's/gatefold\.checkpoint/gatefold_checkpoint/' "$dir/base.st" >"$dir/old.st"
refused "a checkpoint without a version" "old.st: metadata: expected a checkpoint" --load "$dir/old.st"
head -c 2000 /dev/urandom >"$dir/junk.st"
refused "garbage for a checkpoint" "junk.st" --load "$dir/junk.st"
refused "no folder for the picture" "no folder" --picture "$dir/nowhere/a.svg"
refused "a folder for a picture" "data: is a folder" --picture "$dir/data"
refused "one file for two" "expected different files, got .*keep.st" --picture "$dir/data/../keep.st"
refused "a number that begins with 0" "batch: Value 010 begins with 0" --batch 010
mkdir "$dir/none" && cp "$dir"/data/train* "$dir/none" && make_half "$dir/none/t10k" 0
refused "no test images" "none/t10k-images-idx3-ubyte: offset 4: expected images, got none" --data "$dir/none"
"$program" --help | grep -q -- --experts || fail "--help"
[ $failed -eq 0 ] && echo "all checks passed"
exit $failed
