#!/usr/bin/env bash
# test.sh PROGRAM TEXT: a small language model learns, with the same bytes on 1 and 2 threads, at once or killed at random
# moments and gone on; Ctrl-C saves and leaves; one clear line with exit code 2 for whatever does not fit.
set -u
program=$1 text=$2
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
failed=0
fail() { echo "FAILED: $*" >&2; failed=1; }
cat >"$dir/small.json" <<END
{"blocks": 2, "dim": 16, "heads": 2, "experts": 4, "hidden": 16, "length": 16, "batch": 4, "steps": 60, "warmup": 5,
 "lr": 0.01, "log": 1, "validate": 20, "valid-tokens": 200, "save": 7, "tokens": 40}
END
run() { "$program" --config "$dir/small.json" --text "$text" "$@" >"$dir/out" 2>"$dir/err"; }
# The last lines name the folder, one the time.
said() { grep -vE "^[0-9]+ steps in .* tokens/s|^in .*: state|; step [0-9]+ of " "$1"; }
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
grep -q '"best_test_bits":.*"ngram_test_bits":' "$dir/1/metrics.jsonl" || fail "metrics lack what came out"
# other_run FOLDER OPTION...: a short run.
other_run() {
  run --run "$dir/$1" "${@:2}" --steps 8 --warmup 2 --valid-tokens 100 --tokens 1 || fail "$1: $(cat "$dir/err")"
}
other_run base
runs=1
for options in "--update plain" "--update adam" "--update robust" "--update nesterov" "--update time-varying" "--accumulate 2" \
  "--dropout 0.2" "--decay 1" "--decay 1 --decayed all" "--decay 1 --decayed no-embedding"; do
  other_run "other${options// /}" $options
  ((++runs))
done
different=$(for folder in "$dir"/base "$dir"/other*; do grep loss "$folder/metrics.jsonl" | md5sum; done | sort -u | wc -l)
[ "$different" -eq $runs ] || fail "$runs runs of other options have $different courses of loss"
# The same bits in less memory; parts of a batch with dropout, gone on on another number of threads.
other_run recompute --recompute
cmp -s "$dir/recompute/state.safetensors" "$dir/base/state.safetensors" || fail "recompute: another state"
for folder in whole parts; do
  stop=0
  [ $folder = parts ] && stop=3
  for more in $stop 0; do
    other_run $folder --accumulate 2 --dropout 0.2 --recompute --stop $more --threads $((more % 2 + 1))
  done
done
cmp -s "$dir/whole/state.safetensors" "$dir/parts/state.safetensors" || fail "parts of a batch, gone on: another state"

# Killed at random moments; what goes on takes its options from the run, and any number of threads.
run --run "$dir/killed" --stop 3 || fail "stop: $(cat "$dir/err")"
for kill in 1 2 3 4 5 6 7 8; do
  "$program" --config "$dir/small.json" --text "$text" --run "$dir/killed" --threads $((kill % 2 + 1)) >"$dir/out" 2>&1 &
  sleep "$(awk -v ms=$((RANDOM % (took * 3 / 4 + 1))) 'BEGIN { print ms / 1000 }')"
  kill -9 $! 2>/dev/null && touch "$dir/kills"
  wait $!
done 2>/dev/null  # bash tells whom it lost
[ -e "$dir/kills" ] || fail "nothing was killed"
"$program" --run "$dir/killed" --text "$text" --threads 2 --tokens 40 >"$dir/out" 2>"$dir/err" || fail "killed: $(cat "$dir/err")"
same_run 1 killed "killed, then gone on"
cmp <(said "$dir/out" | sed -n '/^bits per/,$p') <(sed -n '/^bits per/,$p' "$dir/1.out") || fail "killed: says something else"
for stop in 1 20 59 0; do run --run "$dir/stopped" --stop $stop --threads $((stop % 2 + 1)) || fail "stop: $(cat "$dir/err")"; done
same_run 1 stopped "stopped, then gone on"

# Ctrl-C and SIGTERM: what is saved is the state of the step that is told.
for signal in INT TERM; do
  "$program" --config "$dir/small.json" --text "$text" --run "$dir/$signal" --steps 1000000 >"$dir/out" 2>"$dir/err" &
  for ((i = 0; i < 200; ++i)); do [ -e "$dir/$signal/state.safetensors" ] && break; sleep 0.05; done
  kill -$signal $!
  wait $!
  [ $? -eq $((128 + $(kill -l $signal))) ] || fail "SIG$signal: exit code: $(cat "$dir/out" "$dir/err")"
  step=$(sed -nE 's/^stopped at step ([0-9]+) of.*/\1/p' "$dir/out")
  run --run "$dir/until" --fresh --steps 1000000 --stop "${step:-1}" || fail "SIG$signal: $(cat "$dir/err")"
  cmp -s "$dir/$signal/state.safetensors" "$dir/until/state.safetensors" || fail "SIG$signal at ${step:-no step}: another state"
done

# What the model writes and says of the text, from the run's folder alone.
again() { "$program" "$@" --run "$dir/1" --text "$text" >"$dir/out" 2>"$dir/err" || fail "$*: $(cat "$dir/err")"; }
again generate --tokens 40
cmp <(sed '/^it goes on:$/,$!d' "$dir/1.out" | sed '1d;$d') "$dir/out" || fail "generates something else than at the end"
again generate --tokens 40 --draw 2 --threads 1
cmp -s <(sed '/^it goes on:$/,$!d' "$dir/1.out" | sed '1d;$d') "$dir/out" && fail "another seed writes the same"
again generate --tokens 5 --temperature 0 --prompt "The "
grep -q "^The " "$dir/out" && [ "$(head -c -1 "$dir/out" | wc -m)" -eq 9 ] || fail "a prompt: $(cat "$dir/out")"
# No text is needed, and none of what was read is read again: the same tokens.
for cache in "" --no-cache; do
  "$program" generate --run "$dir/1" --data "$dir/nowhere" --tokens 40 $cache >"$dir/cache$cache" 2>"$dir/err" || fail "$cache: $(cat "$dir/err")"
  grep -qE "^40 characters in [0-9.]+ s: [0-9]+ a second$" "$dir/err" || fail "$cache: says no speed: $(cat "$dir/err")"
done
cmp "$dir/cache" "$dir/cache--no-cache" || fail "writes something else without a cache"
again evaluate --log-probabilities "$dir/log_p"
cmp <(grep -E "^(this model|Kneser)" "$dir/1.out") <(grep -E "^(this model|Kneser)" "$dir/out") || fail "evaluates differently"
awk -v told="$(awk '/^this model/ { print $NF }' "$dir/out")" '
  { sum -= $1 / log(2) } END { d = sum / NR - told; exit !(NR > 100 && d < 1e-4 && d > -1e-4) }' "$dir/log_p" ||
  fail "log-probabilities are not those of the bits"
# Any text: what it has and the model does not know is the unknown token.
{ cat "$text"; seq 3000 | sed 's/$/ ΩΩΩ/'; } >"$dir/other.txt"
"$program" evaluate --run "$dir/1" --text "$dir/other.txt" >"$dir/out" 2>"$dir/err" && grep -q "^this model" "$dir/out" ||
  fail "another text: $(cat "$dir/err")"
head -n 60 "$text" >"$dir/short.txt"
mkdir "$dir/words"
for part in train valid test; do cp "$dir/short.txt" "$dir/words/$part.txt"; done
"$program" --config "$dir/small.json" --run "$dir/word" --data "$dir/words" --unit word --steps 20 >"$dir/out" 2>"$dir/err" &&
  grep -q "^perplexity" "$dir/out" && [ -e "$dir/words/ngram_word_3.json" ] || fail "words: $(cat "$dir/err")"

# refused PATTERN OPTION...: exit code 2 and one line on stderr that matches.
refused() {
  local pattern=$1
  shift
  run --run "$dir/refused" "$@"
  local code=$?
  [ $code -eq 2 ] && [ "$(wc -l <"$dir/err")" -eq 1 ] && grep -qE "^language_model: .*$pattern" "$dir/err" ||
    fail "$*: exit code $code: $(head -c 300 "$dir/err")"
}
# refused_json PATTERN TEXT: the same of a configuration.
refused_json() {
  printf '%s' "$2" >"$dir/bad.json"
  refused "bad.json: $1" --config "$dir/bad.json"
}
refused_json "dimension: no such option" '{"dimension": 3}'
refused_json "config: no such option" '{"config": "x"}'
refused_json "steps: is there twice" '{"steps": 3, "steps": 4}'
refused_json "--lr: Value -1 is no number above 0" '{"lr": -1}'
refused_json "dim: expected a string, a number, true or false, got array" '{"dim": [1]}'
refused_json "expected an object" '[1]'
refused_json ".*parse error" '{"dim": '
refused "mu: expected an update that has it, got plain" --update plain --mu 0.5
refused "gamma: expected an update that has it, got robust" --update robust --gamma 0.5
refused "accumulate: expected a divisor of batch = 4, got 3" --accumulate 3
refused "decayed: " --decayed biases
refused "dropout: Value 1 not in range" --dropout 1
refused "text: expected one of data and text, got both" --data "$dir/words"
refused "k: expected at most experts = 4, got 5" --k 5
refused "heads: expected a divisor of dim = 16, got 3" --heads 3
refused "warmup: expected less than steps = 4, got 5" --steps 4
refused "lr: Value nan is no number above 0" --lr nan
refused "seed: Value -1 is no whole number" --seed -1
refused "steps: Value 99999999999999999999 not in range" --steps 99999999999999999999
refused "blocks: Value 1099511627776 not in range" --blocks 1099511627776
refused "more memory than there is" --dim 1048576 --hidden 1048576
(ulimit -v 1000000; refused "more memory than there is" --blocks 1048576; exit $failed) || failed=1
refused "cannot open" --text "$dir/nowhere"
refused "zero: cannot open: not a regular file" --text /dev/zero
echo short >"$dir/short"
refused "more than|at least" --text "$dir/short"
refused "metadata: lr: the run has 0.01, got 0.02" --run "$dir/1" --lr 0.02
refused "metadata: text: the run is of another text" --run "$dir/1" --text "$dir/short.txt"
mkdir "$dir/bad" && { head -c 8 "$dir/1/best.safetensors" && tail -c +9 "$dir/1/best.safetensors" | sed 's/"vocabulary"/"vocabulari"/'; } >"$dir/bad/best.safetensors"
refused "metadata: vocabulary: is not there" generate --run "$dir/bad"
refused "best.safetensors: cannot open" generate
mkdir "$dir/cut" && head -c 1000 "$dir/1/state.safetensors" >"$dir/cut/state.safetensors"
refused "cut/state.safetensors" --run "$dir/cut"
"$program" --run "$dir/none" --data "$dir/none" >"$dir/out" 2>"$dir/err"
[ $? -eq 2 ] && grep -q "none/train.txt: is not there: .*prepare.sh" "$dir/err" || fail "no text: $(cat "$dir/err")"
[ $failed -eq 0 ] && echo "all checks passed"
exit $failed
