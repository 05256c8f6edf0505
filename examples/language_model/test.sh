#!/usr/bin/env bash
# test.sh PROGRAM TEXT: a small language model learns, with the same bytes on 1 and 2 threads, at once or gone on at any step.
set -u
program=$1 text=$2
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
failed=0
fail() { echo "FAILED: $*" >&2; failed=1; }
run() { "$program" --text "$text" --steps 40 "$@" >"$dir/out" 2>"$dir/err"; }

for threads in 1 2; do
  run --threads $threads --save "$dir/$threads.st" || fail "$threads threads: $(cat "$dir/err")"
  cp "$dir/out" "$dir/$threads.out"
done
cmp "$dir/1.out" "$dir/2.out" || fail "says something else on 2 threads"
cmp "$dir/1.st" "$dir/2.st" || fail "other parameters on 2 threads"
loss() { sed -nE "s/^step +$1  loss ([0-9.]+) .*/\1/p" "$dir/1.out"; }
awk -v first="$(loss 10)" -v last="$(loss 40)" 'BEGIN { exit !(first > 0 && last > 0 && last < first - 0.1) }' ||
  fail "the loss falls: from $(loss 10) to $(loss 40)"
for stop in 1 13 39; do
  run --steps $stop --threads 2 --save "$dir/part.st" && run --load "$dir/part.st" --seed 9 --threads 1 --save "$dir/rest.st" ||
    fail "stopped at $stop: $(cat "$dir/err")"
  cmp "$dir/1.st" "$dir/rest.st" || fail "stopped at $stop, then gone on: other parameters"
  cmp <(tail -n 2 "$dir/1.out") <(tail -n 2 "$dir/out") || fail "stopped at $stop, then gone on: says something else"
done
cmp -s "$dir/part.st" "$dir/rest.st" && fail "going on changed nothing"

# refused PATTERN OPTION...: exit code 2 and one line on stderr that matches.
refused() {
  local pattern=$1
  shift
  run "$@"
  local code=$?
  [ $code -eq 2 ] && [ "$(wc -l <"$dir/err")" -eq 1 ] && grep -qE "^language_model: .*$pattern" "$dir/err" ||
    fail "$*: exit code $code: $(head -c 300 "$dir/err")"
}
refused "lr: Value nan is no number above 0" --lr nan
refused "seed: Value -1 is no whole number" --seed -1
refused "steps: Value 99999999999999999999 not in range" --steps 99999999999999999999
refused "nowhere" --text "$dir/nowhere"
refused "zero: cannot open: not a regular file" --text /dev/zero
refused "cannot open: not a regular file" --text "$dir"
echo short >"$dir/short"
refused "more than 32 characters, got 6" --text "$dir/short"
refused "nowhere: cannot open" --load "$dir/nowhere"
printf 'ab%.0s' {1..40} >"$dir/ab"
refused "part.st: .*expected \[" --text "$dir/ab" --load "$dir/part.st"
[ $failed -eq 0 ] && echo "all checks passed"
exit $failed
