#!/usr/bin/env bash
# test.sh PROGRAM TEXT [LAUNCHER FLAG]: tests language_model with a small model.
# - The bytes are the same on 1 and 2 threads, and for a run that is killed at random moments and continued.
# - Ctrl-C saves and ends.
# - Wrong options and files give one clear line and exit code 2.
# - On shards, 1 to 3 processes that LAUNCHER FLAG R starts (mpirun -n R) give the same bytes, also if one is killed.
program=$1 text=$2 data=(--text "$2") items=tokens end=(--tokens 40)
source "$(dirname "$0")/../training/checks.sh"
cat >"$dir/small.json" <<END
{"blocks": 2, "dim": 16, "heads": 2, "experts": 4, "hidden": 16, "length": 16, "batch": 4, "steps": 60, "warmup": 5,
 "lr": 0.01, "log": 1, "validate": 20, "valid-tokens": 200, "save": 7, "tokens": 40}
END

check_threads
check_page 2
check_few
grep -q '"best_test_bits":.*"ngram_test_bits":' "$dir/1/metrics.jsonl" || fail "metrics.jsonl lacks the test results"
# other_run FOLDER OPTION...: makes a short run.
other_run() {
  run --run "$dir/$1" "${@:2}" --steps 8 --warmup 2 --valid-tokens 100 --tokens 1 || fail "$1: $(cat "$dir/err")"
}
other_run base
runs=1
for options in "--layout glam" "--initial reference" \
  "--update plain" "--update adam" "--update robust" "--update nesterov" "--update time-varying" \
  "--accumulate 2" "--floor 1" \
  "--dropout 0.2" "--expert-dropout 0.2" "--decay 1" "--decay 1 --decayed all" "--decay 1 --decayed no-embedding"; do
  other_run "other${options// /}" $options
  ((++runs))
done
different=$(for folder in "$dir"/base "$dir"/other*; do grep loss "$folder/metrics.jsonl" | md5sum; done | sort -u |
  wc -l)
[ "$different" -eq $runs ] || fail "expected $runs different curves of the loss, got $different"
# Experts that multiply bfloat16 give the same bits on another number of threads, and other bits than float.
other_run half1 --backend cpu-bf16 --threads 1
other_run half2 --backend cpu-bf16 --threads 2
cmp -s "$dir/half1/state.safetensors" "$dir/half2/state.safetensors" || fail "cpu-bf16: the state on 2 threads differs"
cmp -s "$dir/half1/state.safetensors" "$dir/base/state.safetensors" && fail "cpu-bf16: the state is that of cpu"
# Recomputation gives the same bits and metrics, also if only some steps recompute. A run with parts of a batch and
# dropout gives the same bits if another number of threads continues it.
other_run recompute --recompute
other_run sometimes --stop 3
other_run sometimes --recompute
for folder in recompute sometimes; do same_run base $folder $folder; done
for folder in whole parts; do
  stop=0
  [ $folder = parts ] && stop=3
  for more in $stop 0; do
    other_run $folder --accumulate 2 --dropout 0.2 --expert-dropout 0.1 --recompute --stop $more \
      --threads $((more % 2 + 1))
  done
done
cmp -s "$dir/whole/state.safetensors" "$dir/parts/state.safetensors" || fail "parts of a batch: the state differs"

# In the layout of GLaM, the bits are the same on another number of threads, with recomputation, and in a continued
# run, which takes its layout from its folder. The metrics contain each mixture and no dense block. Generation writes
# the same text with and without a cache.
glam="--layout glam --update adam --dropout 0.2 --expert-dropout 0.1"
other_run glam $glam --threads 1
[ "$(tail -n 2 "$dir/glam/metrics.jsonl" | head -n 1 | grep -o '"entropy":' | wc -l)" -eq 2 ] ||
  fail "glam: the metrics have another number of mixtures than 2"
other_run glam_parts $glam --threads 2 --recompute --stop 3
"$program" --run "$dir/glam_parts" "${data[@]}" --threads 2 --tokens 1 >"$dir/out" 2>"$dir/err" ||
  fail "glam, continued: $(cat "$dir/err")"
same_run glam glam_parts "glam, recomputed and continued"
for cache in "" --no-cache; do
  "$program" generate --run "$dir/glam" --tokens 40 $cache >"$dir/glam$cache.out" 2>"$dir/err" ||
    fail "glam, generate: $(cat "$dir/err")"
done
cmp "$dir/glam.out" "$dir/glam--no-cache.out" || fail "glam: the text differs without a cache"
run --run "$dir/glam" --layout switch && fail "a run continues with another layout"
grep -q "metadata: layout: expected glam, as in the run, got switch" "$dir/err" || fail "glam: $(cat "$dir/err")"

# A dense block neither reads nor writes momentum. With one mixture, the model is therefore the same for every μ.
losses() { grep loss "$dir/$1/metrics.jsonl"; }
for blocks in 1 2; do
  for mu in 0 0.7; do other_run glam_mu$mu --layout glam --blocks $blocks --mu $mu --fresh; done
  cmp -s <(losses glam_mu0) <(losses glam_mu0.7)
  [ $? -eq $((blocks - 1)) ] || fail "glam with $blocks mixtures: μ 0 and 0.7 give equal or different losses"
done

# --dry-run prints the number of parameters. For GLaM of paper 001, a count by hand gives the same number. V is the size
# of the vocabulary; D = 352 and 8 heads; 8 position keys; a block has 2 attentions with 4 matrices, 4 norms, a router
# and 16 experts; a dense expert has the size of an expert. The expert has two D x D matrices and two biases.
"$program" --config glam "${data[@]}" --run "$dir/dry" --dry-run --batch 2 --length 8 >"$dir/out" 2>"$dir/err" ||
  fail "glam, dry run: $(cat "$dir/err")"
awk '/different ones/ { V = $6; P = $9; steps = $14 } END {
  D = 352; expert = 2 * D * D + 2 * D; block = 2 * 4 * D * D + 4 * 2 * D + (D + 1) * 16 + (16 + 1) * expert
  exit !(V > 100 && P == 2 * V * D + V + 8 * D / 8 + 6 * block + 2 * D && steps == 120000) }' \
  <(sed -n '/different ones/s/[;,]//gp' "$dir/out") || fail "glam, dry run: wrong count: $(tail -n 2 "$dir/out")"
# The mixture is the first layer of a pair, and the dense expert is in the second.
layer="^layers.1.layer.layers.5.layers"
grep -qE "$layer.0.layers.1.branch.branch.expert.up +\[16, 352, 352\]" "$dir/out" &&
  grep -qE "$layer.1.layers.1.branch.branch.up +\[1, 352, 352\]" "$dir/out" ||
  fail "glam, dry run: other tensors: $(grep layers.5 "$dir/out")"

# --dry-run writes nothing. The configurations are valid, and a name stands for the file of configs/ with this name.
# Smaller sizes on the command line make them fast.
for config in "$dir/small.json" small medium large glam "$(dirname "$0")"/configs/*.json; do
  "$program" --config "$config" "${data[@]}" --run "$dir/dry" --dry-run --blocks 1 --dim 16 --heads 2 --hidden 16 \
    --length 8 --batch 2 >"$dir/out" 2>"$dir/err" &&
    grep -qE "^a step of 16 tokens takes [0-9.e-]+ s, [0-9]+ steps take [0-9.e-]+ hours$" "$dir/out" &&
    [ ! -e "$dir/dry" ] || fail "$config, dry run: $(cat "$dir/out" "$dir/err")"
  grep -v "^a step of" "$dir/out" >"$dir/dry.${config##*/}"
done
for name in medium large glam; do
  cmp "$dir/dry.$name" "$dir/dry.$name.json" || fail "--config $name differs from the file"
  cmp -s "$dir/dry.$name" "$dir/dry.small" && fail "--config $name has the sizes and steps of small"
done

check_resume "bits per"
check_signals

# Generates and evaluates using only the run's folder and the text.
again() { "$program" "$@" --run "$dir/1" --text "$text" >"$dir/out" 2>"$dir/err" || fail "$*: $(cat "$dir/err")"; }
again generate --tokens 40
cmp <(sed '/^it goes on:$/,$!d' "$dir/1.out" | sed '1d;$d') "$dir/out" ||
  fail "generate: the text differs from that at the end of the run"
again generate --tokens 40 --draw 2 --threads 1
cmp -s <(sed '/^it goes on:$/,$!d' "$dir/1.out" | sed '1d;$d') "$dir/out" && fail "another seed gives the same text"
again generate --tokens 5 --temperature 0 --prompt "The "
grep -q "^The " "$dir/out" && [ "$(head -c -1 "$dir/out" | wc -m)" -eq 9 ] || fail "a prompt: $(cat "$dir/out")"
# generate needs no text. It gives the same tokens with and without the cache.
for cache in "" --no-cache; do
  "$program" generate --run "$dir/1" --data "$dir/nowhere" --tokens 40 $cache >"$dir/cache$cache" 2>"$dir/err" ||
    fail "$cache: $(cat "$dir/err")"
  grep -qE "^40 characters in [0-9.]+ s: [0-9]+ a second$" "$dir/err" || fail "$cache: no speed: $(cat "$dir/err")"
done
cmp "$dir/cache" "$dir/cache--no-cache" || fail "generate: the text differs without a cache"
check_full generate
check_full evaluate --text "$text"
again evaluate --log-probabilities "$dir/log_p"
cmp <(grep -E "^(this model|Kneser)" "$dir/1.out") <(grep -E "^(this model|Kneser)" "$dir/out") ||
  fail "evaluate: the bits differ from those at the end of the run"
awk -v told="$(awk '/^this model/ { print $NF }' "$dir/out")" '
  { sum -= $1 / log(2) } END { d = sum / NR - told; exit !(NR > 100 && d < 1e-4 && d > -1e-4) }' "$dir/log_p" ||
  fail "the log-probabilities do not give the printed bits"
# Packed weights change the bits per token by less than 0.3, and most forms give different bits.
bits_of() { again evaluate "$@"; awk '/^this model/ { print $NF }' "$dir/out"; }
exact=$(bits_of) all=$exact
for form in bfloat16 int8 int4 mxfp4; do
  of_form=$(bits_of --weights $form)
  all+=" $of_form"
  awk -v a="$exact" -v b="$of_form" 'BEGIN { exit !(a - b < 0.3 && b - a < 0.3) }' ||
    fail "--weights $form: $of_form bits instead of $exact"
done
[ "$(tr ' ' '\n' <<<"$all" | sort -u | wc -l)" -ge 4 ] || fail "bits of packed weights: $all"
"$program" train --run "$dir/packed" --text "$text" --weights int8 >"$dir/out" 2>"$dir/err"
[ $? -eq 2 ] && grep -q "options: weights: expected float for the command train, got int8" "$dir/err" ||
  fail "train accepts packed weights: $(cat "$dir/err")"
# Any text can be evaluated: its tokens that the model does not have become the unknown token.
{ cat "$text"; seq 3000 | sed 's/$/ ΩΩΩ/'; } >"$dir/other.txt"
"$program" evaluate --run "$dir/1" --text "$dir/other.txt" >"$dir/out" 2>"$dir/err" &&
  grep -q "^this model" "$dir/out" ||
  fail "another text: $(cat "$dir/err")"
head -n 60 "$text" >"$dir/short.txt"
mkdir "$dir/words"
for part in train valid test; do cp "$dir/short.txt" "$dir/words/$part.txt"; done
"$program" --config "$dir/small.json" --run "$dir/word" --data "$dir/words" --unit word --steps 20 \
  >"$dir/out" 2>"$dir/err" &&
  grep -q "^perplexity" "$dir/out" && [ -e "$dir/words/ngram_word_3.json" ] || fail "words: $(cat "$dir/err")"

# on_shards FOLDER PROCESSES OPTION...: runs a model with dropout on three shards.
on_shards() {
  local processes=()
  (($2 > 0)) && processes=("${launcher[@]}" "$2")
  timeout 120 "${processes[@]}" "$program" --config "$dir/small.json" "${data[@]}" --shards 3 --dropout 0.2 \
    --expert-dropout 0.1 --batch 5 --run "$dir/$1" "${@:3}" >"$dir/out" 2>"$dir/err" </dev/null
}
launcher=("${@:3}")
counts=(0)
((${#launcher[@]} == 0)) || counts=(1 2 3)
for processes in "${counts[@]}"; do
  # Experts stay if there is one process or no launcher, and move otherwise.
  on_shards shards$processes $processes --threads $((processes % 2 + 1)) --rebalance $((processes > 1 ? 7 : 0)) ||
    fail "shards, $processes processes: $(cat "$dir/err")"
  said "$dir/out" >"$dir/shards.out"
  same_run shards$processes shards${counts[0]} "shards, $processes processes"
done
on_shards moves 0 --rebalance 7 || fail "shards, experts move: $(cat "$dir/err")"
same_run moves shards${counts[0]} "shards, experts move"
# The record of each shard: in each of 2 layers, 60 steps of 5 · 16 tokens with 2 slots each.
for run in moves shards${counts[0]} shards${counts[-1]}; do
  awk '
    { while (match($0, /"(computing|waiting|moving)":[0-9.e+-]+/)) {
        split(substr($0, RSTART, RLENGTH), part, ":"); if (part[2] < -1e-9) bad = 1
        seconds += part[2]; ++times; sub(/"(computing|waiting|moving)":/, "") }
      sub(/.*"slots":\[\[/, ""); sub(/\]\].*/, ""); layers = split($0, layer, /\],\[/)
      for (l = 1; l <= layers; ++l) { n = split(layer[l], slot, ","); for (e = 1; e <= n; ++e) sum[l] += slot[e] } }
    END { exit !(NR == 3 && times == 9 && seconds > 0 && !bad && layers == 2 && sum[1] == 9600 && sum[2] == 9600) }
  ' "$dir/$run/shards.jsonl" || fail "$run: wrong values in shards.jsonl: $(cat "$dir/$run/shards.jsonl")"
  ! command -v gnuplot >/dev/null || grep -q "<svg" "$dir/$run/shards.svg" || fail "$run: no picture of shards"
done
grep -q '"experts_moved":0' "$dir/moves/shards.jsonl" && fail "no expert moved"
grep -q "^this model" "$dir/shards.out" && [ "$(grep -c "^step 60:" "$dir/shards.out")" -eq 1 ] ||
  fail "shards: printed $(cat "$dir/shards.out")"
"$program" generate --run "$dir/shards${counts[0]}" --text "$text" --tokens 5 >"$dir/out" 2>"$dir/err" ||
  fail "generates from a run on shards: $(cat "$dir/err")"
if ((${#launcher[@]} > 0)); then
  # Kills one of three processes, several times. Then two processes continue the run, and then one.
  for kill in 1 2 3; do
    on_shards lost 3 &
    sleep "0.$((RANDOM % 9))"
    # Kills one process of the program, not the launcher. Without the launcher, the run could continue at the same time
    # as the next run.
    pkill -9 -f -n "^$program .*$dir/lost" && touch "$dir/killed_rank"
    wait $!
  done
  [ -e "$dir/killed_rank" ] || fail "no process was killed"
  on_shards lost 2 --stop 40 && on_shards lost 1 || fail "after a process was killed: $(cat "$dir/err")"
  same_run lost shards1 "a process was killed"
fi
# In the layout of GLaM, dense blocks are on all shards. Moves of experts change no bit.
on_shards glam_shards 0 --layout glam --threads 1 && on_shards glam_moves 0 --layout glam --rebalance 7 --threads 2 ||
  fail "shards, glam: $(cat "$dir/err")"
same_run glam_shards glam_moves "shards, glam, experts move"
cmp -s "$dir/glam_shards/state.safetensors" "$dir/moves/state.safetensors" && fail "shards: glam has the bits of switch"
on_shards too_many 0 --update robust && fail "shards: accepts the update robust"
grep -q "shards: expected the update plain or heavy-ball, got robust" "$dir/err" ||
  fail "shards: $(cat "$dir/err")"

check_refused
# If a loss or gradient is not finite, the run ends, and the state before that step is saved.
refused "Trainer.step: .*no parameter was changed" --run "$dir/diverged" --lr 1e30 --warmup 0 --save 1000
[ -s "$dir/diverged/state.safetensors" ] || fail "a run that diverged did not save the state before the last step"
# A refused --fresh leaves the previous run unchanged.
cp -r "$dir/1" "$dir/kept"
refused "Corpus: ids: expected" --run "$dir/1" --fresh --length 20000
refused "text: valid-tokens: expected more than length = 16 tokens, got 10" --run "$dir/1" --fresh --valid-tokens 10
refused "KneserNey: order: expected at most [0-9]+, got 63" --run "$dir/1" --fresh --order 63
[[ ${GATEFOLD_BUILT_FOR-cpu} == cuda ]] || refused "backend: expected cpu or" --run "$dir/1" --fresh --backend cuda
diff -r "$dir/1" "$dir/kept" || fail "a refused --fresh changed the previous run"
refused "mu: expected an update with this option, got plain" --update plain --mu 0.5
refused "gamma: expected an update with this option, got robust" --update robust --gamma 0.5
refused "not expected: --batchs" --batchs 100
refused "backend: expected cpu or cuda for the update adam, got cpu-bf16" --backend cpu-bf16 --update adam
[[ ${GATEFOLD_BUILT_FOR-cpu} == cuda ]] ||
  refused "backend: expected cpu or cpu-bf16, as this program was built without CUDA, got cuda" --backend cuda
refused "shards: expected the backend cpu, got cpu-bf16" --backend cpu-bf16 --shards 2
refused "dry-run: expected false with shards" --dry-run --shards 2
refused "rebalance: expected 0 without shards, got 3" --rebalance 3
refused "rebalance: expected 0 with recompute" --rebalance 3 --shards 2 --recompute
refused "accumulate: expected a divisor of batch = 4, got 3" --accumulate 3
refused "decayed: " --decayed biases
refused "layout: " --layout dense
refused "initial: " --initial zero
refused "huge: cannot open" --config huge
refused "prompt: expected UTF-8" --prompt $'a\xff'
refused "prompt: expected UTF-8" --prompt $'-a\xff'  # a value, although it begins with -
refused "nowhere/log_p: cannot create" --log-probabilities "$dir/nowhere/log_p"
[ ! -e "$dir/refused/state.safetensors" ] || fail "a refused run saved a state"
run --run "$dir/asked" --log-probabilities "$dir/asked.txt" --stop 1 || fail "asked: $(cat "$dir/err")"
[ ! -e "$dir/asked.txt" ] || fail "a stopped run wrote a file of log-probabilities"
refused "text: expected one of data and text, got both" --data "$dir/words"
refused "blocks: Value 1099511627776 not in range" --blocks 1099511627776
refused "not enough memory for these sizes" --experts 65536 --hidden 1048576
(ulimit -v 1000000; refused "not enough memory for these sizes" --blocks 1048576; exit $failed) || failed=1
refused "cannot open" --text "$dir/nowhere"
refused "zero: cannot open: not a regular file" --text /dev/zero
echo short >"$dir/short"
refused "more than|at least" --text "$dir/short"
refused "metadata: text: expected the data of the run, got other data" --run "$dir/1" --text "$dir/short.txt"
mkdir "$dir/bad" && {
  head -c 8 "$dir/1/best.safetensors" && tail -c +9 "$dir/1/best.safetensors" | sed 's/"vocabulary"/"vocabulari"/'
} >"$dir/bad/best.safetensors"
refused "metadata: vocabulary: missing" generate --run "$dir/bad"
refused "best.safetensors: cannot open" generate
"$program" --run "$dir/none" --data "$dir/none" >"$dir/out" 2>"$dir/err"
[ $? -eq 2 ] && grep -q "none/train.txt: missing: .*prepare.sh" "$dir/err" || fail "no text: $(cat "$dir/err")"
finish
