#!/usr/bin/env bash
# test_cuda.sh PROGRAM: small vision transformers learn the same on a GPU as on the CPU. A run that is stopped and
# continued gives the same bytes, and `evaluate` repeats the report at the end of the run.
program=$1
source "$(dirname "$0")/../training/checks_cuda.sh"
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

for of in "vmoe heavy-ball" "vmoe robust" "similarity heavy-ball" "attention heavy-ball" "soft plain"; do
  read -r router update <<<"$of"
  for backend in cpu cuda; do
    run --run "$dir/$router.$update.$backend" --router "$router" --update "$update" --backend $backend --stop 6 ||
      fail "$of on $backend: $(cat "$dir/err")"
  done
  close_losses 6 1e-5 "$router.$update"
done

for backend in cpu cuda; do
  run --run "$dir/changed.$backend" --backend $backend --stop 6 --flip --crop 2 --mixup 0.4 --label-smoothing 0.1 ||
    fail "changed images on $backend: $(cat "$dir/err")"
done
close_losses 6 1e-5 changed

run --run "$dir/whole" --backend cuda || fail "cuda: $(cat "$dir/err")"
sed -n '/^accuracy/,/^mean/p' "$dir/out" >"$dir/said"
[ "$(wc -l <"$dir/said")" -ge 10 ] || fail "cuda prints no accuracies: $(cat "$dir/out")"
for stop in 3 0; do
  run --run "$dir/parts" --backend cuda --stop $stop || fail "cuda, stopped: $(cat "$dir/err")"
done
for file in state best; do
  cmp "$dir/whole/$file.safetensors" "$dir/parts/$file.safetensors" || fail "continued: $file differs"
done
"$program" evaluate --run "$dir/whole" --data "$dir" "${end[@]}" >"$dir/out" 2>"$dir/err" &&
  cmp "$dir/said" <(sed -n '/^accuracy/,/^mean/p' "$dir/out") || fail "evaluate: the report differs: $(cat "$dir/err")"
run --run "$dir/few" --stop 1 || fail "few: $(cat "$dir/err")"
run --run "$dir/few" --backend cuda && fail "cuda continues a run of the CPU"
grep -q "^vision: .*metadata: backend: expected cpu, as in the run, got cuda (--fresh starts a new run)$" "$dir/err" ||
  fail "expected another message, got: $(cat "$dir/err")"
exit $failed
