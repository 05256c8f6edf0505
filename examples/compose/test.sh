#!/usr/bin/env bash
# test.sh PROGRAM: tests the table of compose on a small made-up data set, and that wrong options or files give one
# clear line and exit code 2.
program=$1
source "$(dirname "$0")/../checks.sh"

# IDX files of 20 images: big-endian magic and extents, then bytes.
{ printf '\000\000\010\003\000\000\000\024\000\000\000\034\000\000\000\034'; head -c $((20 * 784)) /dev/urandom; } \
  >"$dir/train-images-idx3-ubyte"
{ printf '\000\000\010\001\000\000\000\024'; head -c 20 /dev/zero; } >"$dir/train-labels-idx1-ubyte"

run() { "$program" --data "$dir" --images 10 --runs 2 "$@" >"$dir/out" 2>"$dir/err"; }
run --json "$dir/table.json" || fail "$(cat "$dir/err")"
gates=$(grep '"gate"' "$dir/table.json" | sort -u | wc -l)
updates=$(grep '"update"' "$dir/table.json" | sort -u | wc -l)
rows=$(grep -c '"relative_time"' "$dir/table.json")
[ "$gates" -ge 17 ] || fail "$gates gates"
[ "$updates" -ge 14 ] || fail "$updates update rules"
[ "$rows" -eq $((gates * updates)) ] || fail "$rows rows for $gates gates and $updates update rules"
for key in output_norm routing_entropy; do
  [ "$(grep -c "\"$key\": [0-9]" "$dir/table.json")" -eq "$rows" ] || fail "$key is not a number in every row"
done
# All numbers except the times are the same on any number of threads.
run --threads 1 --json "$dir/1.json" && run --threads 2 --json "$dir/2.json" || fail "threads"
stable() { grep -vE '"(relative_time|seconds|threads)"' "$1"; }
cmp -s <(stable "$dir/1.json") <(stable "$dir/2.json") || fail "the numbers on 2 threads differ"

refused() {
  local pattern=$1
  shift
  run "$@"
  local code=$?
  [ $code -eq 2 ] || fail "$*: exit code $code"
  grep -qE "$pattern" "$dir/err" || fail "$*: $(cat "$dir/err")"
}
refused "nowhere/train-images.*neither" --data "$dir/nowhere"
refused "at most 20, got 50" --images 50
refused "at most --experts = 2, got 3" --experts 2 --k 3
refused "seed: Value -1 is no whole number" --seed -1
refused "seed: Value 18446744073709551616 is no whole number" --seed 18446744073709551616
refused "images: Value 99999999999999999999 not in range" --images 99999999999999999999
refused "not enough memory for these sizes" --experts 1048576 --hidden 1048576
cp "$dir/table.json" "$dir/kept.json"
chmod -w "$dir/table.json"
for file in nowhere/table.json table.json; do
  refused "$file: cannot" --json "$dir/$file"
  [ ! -s "$dir/out" ] || fail "$file: the table was computed although the file cannot be written"
done
cmp -s "$dir/table.json" "$dir/kept.json" || fail "a refused run changed the table"
[ $failed -eq 0 ] && echo "all checks passed"
exit $failed
