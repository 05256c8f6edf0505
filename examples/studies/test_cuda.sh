#!/usr/bin/env bash
# test_cuda.sh PROGRAM OPTION...: trains a small case of a study on a GPU. Each OPTION is passed to PROGRAM to make the
# case small. The results equal the results on the CPU up to rounding, and have the same bytes on any number of threads.
# A stored run of one backend is not used for the other.
program=$1
shift
small=(--quick --seeds 1 "$@")
source "$(dirname "$0")/../checks.sh"
source "$(dirname "$0")/made_up_data.sh"

# run FOLDER BACKEND OPTION...
run() {
  "$program" "${small[@]}" "${data[@]}" --out "$dir/$1" --backend "$2" "${@:3}" >"$dir/out" 2>"$dir/err" ||
    fail "$2: $(tail -n 1 "$dir/err")"
}
# The mean of each result, by name.
results() { tail -n +2 "$dir/$1/results.csv" | cut -d , -f 1,2 | sort; }

run first cpu
cp -r "$dir/first" "$dir/second"
run second cuda --threads 2
grep -q "runs from before" "$dir/out" && fail "cuda used stored runs of the CPU: $(cat "$dir/out")"
grep -q '"backend": "cuda"' "$dir/second/results.json" || fail "results.json does not name the backend"
for of_case in "$dir"/second/runs/*; do
  grep -q '"backend":"cuda"' "$of_case" || fail "$(basename "$of_case") does not name the backend"
done
# Stored runs of the CPU name no backend, so that runs of older versions stay valid.
grep -rq backend "$dir/first" && fail "runs of the CPU name a backend"
# The CPU and the GPU compute in float, but add numbers in different orders.
join -t , <(results first) <(results second) | awk -F , '
  { apart = $2 - $3; if (apart < 0) apart = -apart; most = $2 < 0 ? -$2 : $2
    if (!(apart <= 1e-5 * most + 1e-9)) { print "of the CPU and others: " $0; bad = 1 } }
  END { exit bad || NR < 6 }' >&2 || fail "the numbers differ from those of the CPU"

cp -r "$dir/second" "$dir/third"
rm "$(ls -d "$dir"/third/runs/* | head -n 1)"
run third cuda --threads 1
grep -q "runs from before" "$dir/out" || fail "stored runs were not used: $(cat "$dir/out")"
diff -r "$dir/second/runs" "$dir/third/runs" >/dev/null || fail "the results on 1 thread differ"
run third cpu
grep -q "runs from before" "$dir/out" && fail "the CPU used stored runs of the GPU: $(cat "$dir/out")"
diff -r "$dir/first/runs" "$dir/third/runs" >/dev/null || fail "the runs of the CPU differ after those of the GPU"

"$program" "${small[@]}" "${data[@]}" --backend cuda --costs >"$dir/out" 2>"$dir/err"
[ $? -eq 2 ] && grep -q "backend: expected cpu with --costs, which measures host memory, got cuda$" "$dir/err" ||
  fail "costs: $(cat "$dir/err")"
[ $failed -eq 0 ] && echo "all checks passed"
exit $failed
