#!/usr/bin/env bash
# test_cuda.sh PROGRAM: small vision transformers learn on a GPU what they learn on the CPU; stopped and gone on, the
# same bytes; what a run says at its end, it says when it is asked again.
set -u
program=$1
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
failed=0
fail() { echo "FAILED: $*" >&2; failed=1; }
source "$(dirname "$0")/../fashion_mnist/make_half.sh"
make_half "$dir/train" 60
make_half "$dir/t10k" 20
cat >"$dir/small.json" <<END
{"patch": 14, "depth": 2, "dim": 8, "heads": 2, "experts": 4, "hidden": 8, "batch": 8, "steps": 8, "warmup": 2,
 "lr": 0.001, "valid-images": 8, "log": 1, "validate": 4, "save": 4, "test-images": 4, "attack-steps": 2,
 "baseline-steps": 2, "epsilon": 0.05}
END
end=(--test-images 4 --attack-steps 2 --baseline-steps 2 --epsilon 0.05)
run() { "$program" --config "$dir/small.json" --data "$dir" "$@" >"$dir/out" 2>"$dir/err"; }

# losses FOLDER: one for each step.
losses() { grep -o '"loss":[0-9.]*' "$dir/$1/metrics.jsonl" | cut -d : -f 2; }
# Float on both, in another order of sums: each step adds to what is apart.
for of in "vmoe heavy-ball" "vmoe robust" "similarity heavy-ball" "attention heavy-ball" "soft plain"; do
  read -r router update <<<"$of"
  for backend in cpu cuda; do
    run --run "$dir/$router.$update.$backend" --router "$router" --update "$update" --backend $backend --stop 6 ||
      fail "$of on $backend: $(cat "$dir/err")"
  done
  paste <(losses "$router.$update.cpu") <(losses "$router.$update.cuda") | awk '
    { apart = $1 / $2 - 1; if (apart < 0) apart = -apart; if (!(apart < 1e-5)) exit 1 }
    END { exit NR != 6 }' ||
    fail "$of: losses of the CPU and others:" $(losses "$router.$update.cpu") and $(losses "$router.$update.cuda")
done

run --run "$dir/whole" --backend cuda || fail "cuda: $(cat "$dir/err")"
sed -n '/^accuracy/,/^mean/p' "$dir/out" >"$dir/said"
[ "$(wc -l <"$dir/said")" -ge 10 ] || fail "cuda says no accuracies: $(cat "$dir/out")"
for stop in 3 0; do
  run --run "$dir/parts" --backend cuda --stop $stop || fail "cuda, stopped: $(cat "$dir/err")"
done
for file in state best; do
  cmp "$dir/whole/$file.safetensors" "$dir/parts/$file.safetensors" || fail "gone on: another $file"
done
"$program" evaluate --run "$dir/whole" --data "$dir" "${end[@]}" >"$dir/out" 2>"$dir/err" &&
  cmp "$dir/said" <(sed -n '/^accuracy/,/^mean/p' "$dir/out") || fail "evaluates differently: $(cat "$dir/err")"
run --run "$dir/few" --stop 1 || fail "few: $(cat "$dir/err")"
run --run "$dir/few" --backend cuda && fail "goes on with the CPU's run"
grep -q "^vision: .*metadata: backend: the run has cpu, got cuda (--fresh begins another)$" "$dir/err" ||
  fail "another sentence: $(cat "$dir/err")"
exit $failed
