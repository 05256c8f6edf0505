# Sourced by the tests of programs that train. The checks hold for all these programs. Before sourcing, the test sets
#   program   the program                  data   options that name its data
#   items     the unit of its steps        end    options of the small run that only its final report needs
# After sourcing, the test writes the options of a run to $dir/small.json. The run has 60 steps, and writes a line of
# metrics for each step.
source "$(dirname "${BASH_SOURCE[0]}")/../checks.sh"
# run OPTION...: runs the small configuration; its output goes to out and err.
run() { "$program" --config "$dir/small.json" "${data[@]}" "$@" >"$dir/out" 2>"$dir/err"; }
# Removes the lines that contain the folder, the time or the step.
said() { grep -vE "^[0-9]+ steps in .* $items/s|^in .*: state|; step [0-9]+ of " "$1"; }
same_run() {
  local file
  for file in state.safetensors best.safetensors metrics.jsonl; do
    cmp -s "$dir/$1/$file" "$dir/$2/$file" || fail "$3: $file differs"
  done
}

# Runs 1 and 2 have different numbers of threads but the same bytes, and the loss falls.
check_threads() {
  local threads begun
  begun=$(date +%s%N)
  for threads in 1 2; do
    run --run "$dir/$threads" --threads $threads || fail "$threads threads: $(cat "$dir/err")"
    said "$dir/out" >"$dir/$threads.out"
  done
  took=$((($(date +%s%N) - begun) / 2000000))  # ms of a run
  same_run 1 2 "2 threads"
  cmp "$dir/1.out" "$dir/2.out" || fail "the output on 2 threads differs"
  loss() { sed -nE "s/^\{\"step\":$1,\"loss\":([0-9.]+)\}$/\1/p" "$dir/1/metrics.jsonl"; }
  awk -v first="$(loss 1)" -v last="$(loss 60)" 'BEGIN { exit !(first > 0 && last > 0 && last < first - 0.5) }' ||
    fail "the loss does not fall enough: from $(loss 1) to $(loss 60)"
}

# check_page LAYERS: checks the metrics of each layer (load, entropy, fluctuation) and the page of a run, which must not
# refer to other files.
check_page() {
  local layers=$1 key
  for key in entropy load picks fluctuation; do
    [ "$(tail -n 2 "$dir/1/metrics.jsonl" | head -n 1 | grep -o "\"$key\":" | wc -l)" -eq "$layers" ] ||
      fail "metrics lack $key of $layers layers"
  done
  grep -q "<td>experts</td><td>4</td>" "$dir/1/report.html" || fail "the page lacks options"
  ! grep -qE "(src|href)=['\"]?[^#'\"]" "$dir/1/report.html" || fail "the page refers to another file"
  ! command -v gnuplot >/dev/null || [ "$(grep -c "<figure><svg" "$dir/1/report.html")" -eq 2 ] ||
    fail "expected two pictures in the page"
  # The axis of experts has a label, and its numbers are whole.
  ! command -v gnuplot >/dev/null || { grep -q ">expert<" "$dir/1/routing.svg" &&
    ! grep -qE "> *-0.5<" "$dir/1/routing.svg"; } || fail "routing.svg: wrong axis of experts"
}

# The last line of a run names exactly the files that exist.
check_files() {
  local named
  named=$(sed -nE '$s/^in .*: //p' "$dir/out" | tr -d ' ' | tr , '\n' | sort)
  [ -n "$named" ] && [ "$named" = "$(ls "$dir/$1" | sort)" ] || fail "$1: names the files $named"
}
# Draws pictures with few points: one or two reported steps, and one or two experts. gnuplot must print no message.
check_few() {
  local experts steps
  for experts in 1 2; do
    for steps in 1 2; do
      run --run "$dir/few" --fresh --steps $steps --warmup 0 --experts $experts --k 1 ||
        fail "few: $(cat "$dir/err")"
      [ ! -s "$dir/err" ] || fail "$experts experts, $steps steps: printed $(cat "$dir/err")"
      check_files few
    done
  done
}
# Checks that the exit code is 1 and that one line gives the reason if standard output cannot be written.
check_full() {
  [ -e /dev/full ] || return
  "$program" "$@" --run "$dir/1" >/dev/full 2>"$dir/err"
  local code=$?
  [ $code -eq 1 ] && [ "$(grep -c "^$(basename "$program"): standard output: cannot write" "$dir/err")" -eq 1 ] ||
    fail "a full disk: $*: exit code $code: $(cat "$dir/err")"
}

# check_resume REPORT: a run that is killed at random moments or stopped, and then continued, must have the bytes of run
# 1. From the line that begins with REPORT on, its output must be that of run 1. A continued run takes its options from
# its folder, and may have another number of threads.
check_resume() {
  local report=$1 kill stop
  run --run "$dir/killed" --stop 3 || fail "stop: $(cat "$dir/err")"
  for kill in 1 2 3 4 5 6 7 8; do
    "$program" --config "$dir/small.json" "${data[@]}" --run "$dir/killed" --threads $((kill % 2 + 1)) \
      >"$dir/out" 2>&1 &
    sleep "$(awk -v ms=$((RANDOM % (took * 3 / 4 + 1))) 'BEGIN { print ms / 1000 }')"
    kill -9 $! 2>/dev/null && touch "$dir/kills"
    wait $!
  done 2>/dev/null  # bash reports killed jobs there
  [ -e "$dir/kills" ] || fail "every run ended before it was killed"
  "$program" --run "$dir/killed" "${data[@]}" "${end[@]}" --threads 2 >"$dir/out" 2>"$dir/err" ||
    fail "killed: $(cat "$dir/err")"
  same_run 1 killed "killed, then continued"
  cmp <(said "$dir/out" | sed -n "/^$report/,\$p") <(sed -n "/^$report/,\$p" "$dir/1.out") ||
    fail "killed, then continued: the output differs"
  for stop in 1 20 59 0; do
    run --run "$dir/stopped" --stop $stop --threads $((stop % 2 + 1)) || fail "stop: $(cat "$dir/err")"
  done
  same_run 1 stopped "stopped, then continued"
}

# Ctrl-C and SIGTERM must save the state of the step that the program prints.
check_signals() {
  local signal i step
  for signal in INT TERM; do
    "$program" --config "$dir/small.json" "${data[@]}" --run "$dir/$signal" --steps 1000000 >"$dir/out" 2>"$dir/err" &
    for ((i = 0; i < 200; ++i)); do [ -e "$dir/$signal/state.safetensors" ] && break; sleep 0.05; done
    kill -$signal $!
    wait $!
    [ $? -eq $((128 + $(kill -l $signal))) ] || fail "SIG$signal: exit code: $(cat "$dir/out" "$dir/err")"
    step=$(sed -nE 's/^stopped at step ([0-9]+) of.*/\1/p' "$dir/out")
    run --run "$dir/until" --fresh --steps 1000000 --stop "${step:-1}" || fail "SIG$signal: $(cat "$dir/err")"
    cmp -s "$dir/$signal/state.safetensors" "$dir/until/state.safetensors" ||
      fail "SIG$signal at ${step:-no step}: the state differs"
  done
}

# refused PATTERN OPTION...: expects exit code 2 and one line on stderr that matches.
refused() {
  local pattern=$1
  shift
  run --run "$dir/refused" "$@"
  local code=$?
  [ $code -eq 2 ] && [ "$(wc -l <"$dir/err")" -eq 1 ] && grep -qE "^$(basename "$program"): .*$pattern" "$dir/err" ||
    fail "$*: exit code $code: $(head -c 300 "$dir/err")"
}
# refused_json PATTERN TEXT: calls refused with a configuration file that contains TEXT.
refused_json() {
  printf '%s' "$2" >"$dir/bad.json"
  refused "bad.json: $1" --config "$dir/bad.json"
}
check_refused() {
  refused_json "dimension: no such option" '{"dimension": 3}'
  refused_json "config: no such option" '{"config": "x"}'
  refused_json "steps: given twice" '{"steps": 3, "steps": 4}'
  refused_json "--lr: Value -1 is no number above 0" '{"lr": -1}'
  refused_json "dim: expected a string, a number, true or false, got array" '{"dim": [1]}'
  refused_json "expected an object" '[1]'
  refused_json ".*parse error" '{"dim": '
  refused "k: expected at most experts = 4, got 5" --k 5
  refused "heads: expected a divisor of dim = 16, got 3" --heads 3
  refused "warmup: expected less than steps = 4, got 5" --steps 4 --warmup 5
  refused "lr: Value nan is no number above 0" --lr nan
  refused "dropout: Value 1 is no number from 0 to 0.99" --dropout 1
  refused "seed: Value -1 is no whole number" --seed -1
  refused "batch: Value 010 begins with 0" --batch 010
  refused "steps: Value 99999999999999999999 not in range" --steps 99999999999999999999
  refused "metadata: lr: expected 0.01, as in the run, got 0.02 \(--fresh starts a new run\)$" --run "$dir/1" --lr 0.02
  refused "metadata: lr: expected 0.01, as in the run, got 0.02$" evaluate --run "$dir/1" --lr 0.02
  run --run "$dir/forgot" --stop 25 && rm "$dir/forgot/metrics.jsonl"
  refused "forgot/metrics.jsonl: cannot open" --run "$dir/forgot"
  # Lines of the metrics are missing: all, all from line 5 on, or line 40. The best model is missing or cut.
  local lines
  cp -r "$dir/1" "$dir/lost_lines"
  for lines in 1,\$ 5,\$ 40; do
    sed "${lines}d" "$dir/1/metrics.jsonl" >"$dir/lost_lines/metrics.jsonl"
    refused "lost_lines/metrics.jsonl: step [0-9]+: expected a line with .*\(--fresh starts a new run\)$" \
      --run "$dir/lost_lines"
  done
  run --run "$dir/lost_best" --stop 25 && rm "$dir/lost_best/best.safetensors"
  refused "lost_best/best.safetensors: cannot open.* \(--fresh starts a new run\)$" --run "$dir/lost_best"
  head -c 1000 "$dir/1/best.safetensors" >"$dir/lost_best/best.safetensors"
  refused "lost_best/best.safetensors: .*\(--fresh starts a new run\)$" --run "$dir/lost_best"
  # A refused --fresh leaves the previous run unchanged.
  cp -r "$dir/1" "$dir/kept"
  refused "mu: Value nan is no number from -1 to 1" --run "$dir/kept" --fresh --mu nan
  diff -r "$dir/1" "$dir/kept" || fail "a refused --fresh changed the previous run"
  rm -r "$dir/kept"
  refused "best.safetensors: cannot open" evaluate
  mkdir "$dir/cut" && head -c 1000 "$dir/1/state.safetensors" >"$dir/cut/state.safetensors"
  refused "cut/state.safetensors" --run "$dir/cut"
}

finish() {
  [ $failed -eq 0 ] && echo "all checks passed"
  exit $failed
}
