#!/usr/bin/env bash
# test.sh PROGRAM: small vision transformers learn made-up images, with the same bytes on 1 and 2 threads, at once or killed at
# random moments and gone on; Ctrl-C saves and leaves; one clear line with exit code 2 for whatever does not fit.
set -u
program=$1
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
failed=0
fail() { echo "FAILED: $*" >&2; failed=1; }
source "$(dirname "$0")/../fashion_mnist/make_half.sh"
mkdir "$dir/data"
make_half "$dir/data/train" 320
make_half "$dir/data/t10k" 60
cat >"$dir/small.json" <<END
{"patch": 14, "depth": 2, "dim": 16, "heads": 2, "experts": 4, "hidden": 16, "batch": 32, "steps": 60, "warmup": 3,
 "lr": 0.01, "valid-images": 60, "log": 1, "validate": 20, "save": 7, "test-images": 40, "attack-steps": 3,
 "baseline-steps": 2, "epsilon": 0.05}
END
run() { "$program" --config "$dir/small.json" --data "$dir/data" "$@" >"$dir/out" 2>"$dir/err"; }
# The last lines name the folder, one the time.
said() { grep -vE "^[0-9]+ steps in .* images/s|^in .*: state|; step [0-9]+ of " "$1"; }
same_run() {
  local file
  for file in state.safetensors best.safetensors metrics.jsonl; do
    cmp -s "$dir/$1/$file" "$dir/$2/$file" || fail "$3: other $file"
  done
}

begun=$(date +%s%N)
for threads in 1 2; do
  run --run "$dir/$threads" --threads $threads || fail "$threads threads: $(cat "$dir/err")"
  said "$dir/out" >"$dir/$threads.out"
done
took=$((($(date +%s%N) - begun) / 2000000))  # ms of a run
same_run 1 2 "2 threads"
cmp "$dir/1.out" "$dir/2.out" || fail "says something else on 2 threads"
loss() { sed -nE "s/^\{\"step\":$1,\"loss\":([0-9.]+)\}$/\1/p" "$dir/1/metrics.jsonl"; }
awk -v first="$(loss 1)" -v last="$(loss 60)" 'BEGIN { exit !(first > 0 && last > 0 && last < first - 0.5) }' ||
  fail "the loss falls: from $(loss 1) to $(loss 60)"
for key in test_accuracy fgsm_accuracy pgd_accuracy corrupted_accuracy mean_corruption_error gaussian_noise occlusion; do
  grep -q "\"$key\":" "$dir/1/metrics.jsonl" || fail "metrics lack $key"
done
[ "$(grep -cE '^(gaussian_noise|blur|contrast|brightness|pixelate|occlusion)( +[0-9.]+){6}$' "$dir/1.out")" -eq 6 ] ||
  fail "no table of six corruptions in five severities"
! command -v gnuplot >/dev/null || [ "$(grep -c "<svg" "$dir/1/accuracy.svg")" -eq 1 ] || fail "no picture, or two in a file"
# What attacks do: more steps, and a longer way, leave less.
told() { awk -v what="$1" '$1 == what { print $2 }' "$dir/1.out"; }
awk -v clean="$(told clean)" -v fgsm="$(told fgsm)" -v pgd="$(told pgd)" \
  'BEGIN { exit !(clean > 40 && fgsm < clean && pgd < clean) }' || fail "attacks: $(cat "$dir/1.out")"

# Every router and rule learns something of its own.
for of in "vmoe plain" "vmoe robust" "similarity heavy-ball" "attention heavy-ball" "soft plain"; do
  read -r router update <<<"$of"
  run --run "$dir/$router.$update" --router "$router" --update "$update" --steps 12 || fail "$of: $(cat "$dir/err")"
done
[ "$(cat "$dir"/*.*/state.safetensors | wc -c)" -gt 0 ] &&
  [ "$(for state in "$dir"/*.*/state.safetensors; do sha256sum <"$state"; done | sort -u | wc -l)" -eq 5 ] ||
  fail "two of the five models are the same"

# Killed at random moments; what goes on takes its options from the run, and any number of threads.
run --run "$dir/killed" --stop 3 || fail "stop: $(cat "$dir/err")"
for kill in 1 2 3 4 5 6; do
  "$program" --config "$dir/small.json" --data "$dir/data" --run "$dir/killed" --threads $((kill % 2 + 1)) >"$dir/out" 2>&1 &
  sleep "$(awk -v ms=$((RANDOM % (took * 3 / 4 + 1))) 'BEGIN { print ms / 1000 }')"
  kill -9 $! 2>/dev/null && touch "$dir/kills"
  wait $!
done 2>/dev/null  # bash tells whom it lost
[ -e "$dir/kills" ] || fail "nothing was killed"
run --run "$dir/killed" --threads 2 || fail "killed: $(cat "$dir/err")"
same_run 1 killed "killed, then gone on"
cmp <(said "$dir/out" | sed -n '/^accuracy/,$p') <(sed -n '/^accuracy/,$p' "$dir/1.out") || fail "killed: says something else"
for stop in 1 20 59 0; do run --run "$dir/stopped" --stop $stop --threads $((stop % 2 + 1)) || fail "stop: $(cat "$dir/err")"; done
same_run 1 stopped "stopped, then gone on"

# Ctrl-C and SIGTERM: what is saved is the state of the step that is told.
for signal in INT TERM; do
  "$program" --config "$dir/small.json" --data "$dir/data" --run "$dir/$signal" --steps 1000000 >"$dir/out" 2>"$dir/err" &
  for ((i = 0; i < 200; ++i)); do [ -e "$dir/$signal/state.safetensors" ] && break; sleep 0.05; done
  kill -$signal $!
  wait $!
  [ $? -eq $((128 + $(kill -l $signal))) ] || fail "SIG$signal: exit code: $(cat "$dir/out" "$dir/err")"
  step=$(sed -nE 's/^stopped at step ([0-9]+) of.*/\1/p' "$dir/out")
  run --run "$dir/until" --fresh --steps 1000000 --stop "${step:-1}" || fail "SIG$signal: $(cat "$dir/err")"
  cmp -s "$dir/$signal/state.safetensors" "$dir/until/state.safetensors" || fail "SIG$signal at ${step:-no step}: another state"
done

# What it says of the best model, from the run's folder alone.
"$program" evaluate --run "$dir/1" --data "$dir/data" --test-images 40 --attack-steps 3 --baseline-steps 2 --epsilon 0.05 \
  >"$dir/out" 2>"$dir/err" || fail "evaluate: $(cat "$dir/err")"
cmp <(sed -n '/^accuracy/,/^mean/p' "$dir/1.out") <(sed -n '/^accuracy/,/^mean/p' "$dir/out") || fail "evaluates differently"

# refused PATTERN OPTION...: exit code 2 and one line on stderr that matches.
refused() {
  local pattern=$1
  shift
  run --run "$dir/refused" "$@"
  local code=$?
  [ $code -eq 2 ] && [ "$(wc -l <"$dir/err")" -eq 1 ] && grep -qE "^vision: .*$pattern" "$dir/err" ||
    fail "$*: exit code $code: $(head -c 300 "$dir/err")"
}
# refused_json PATTERN TEXT: the same of a configuration.
refused_json() {
  printf '%s' "$2" >"$dir/bad.json"
  refused "bad.json: $1" --config "$dir/bad.json"
}
refused_json "dimension: no such option" '{"dimension": 3}'
refused_json "steps: is there twice" '{"steps": 3, "steps": 4}'
refused_json "--patch: 5 not in" '{"patch": 5}'
refused "mu: expected update = heavy-ball, whose it is, got plain" --update plain --mu 0.5
refused "tau: expected router = similarity, whose it is, got soft" --router soft --tau 2
refused "update: expected plain or heavy-ball of this router, soft, got robust" --router soft --update robust
refused "k: expected at most experts = 4, got 5" --k 5
refused "heads: expected a divisor of dim = 16, got 3" --heads 3
refused "depth: expected an even number, got 3" --depth 3
refused "warmup: expected less than steps = 4, got 5" --steps 4 --warmup 5
refused "train-images: expected batch = 32 to 260, what valid-images leaves, got 300" --train-images 300
refused "train-images: .*got -5" --valid-images 325
refused "nowhere/train-images.*neither" --data "$dir/nowhere"
mkdir "$dir/less" && make_half "$dir/less/train" 310 && make_half "$dir/less/t10k" 60
refused "metadata: images: the run is of other images" --run "$dir/1" --data "$dir/less"
refused "metadata: lr: the run has 0.01, got 0.02" --run "$dir/1" --lr 0.02
refused "best.safetensors: cannot open" evaluate
mkdir "$dir/cut" && head -c 1000 "$dir/1/state.safetensors" >"$dir/cut/state.safetensors"
refused "cut/state.safetensors" --run "$dir/cut"
[ $failed -eq 0 ] && echo "all checks passed"
exit $failed
