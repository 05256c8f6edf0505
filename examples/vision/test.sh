#!/usr/bin/env bash
# test.sh PROGRAM: tests vision with small models and made-up images. The bytes are the same on 1 and 2 threads, and for
# a run that is killed at random moments and continued. Ctrl-C saves and ends. Wrong options and files give one clear
# line and exit code 2.
program=$1 items=images end=(--test-images 40 --attack-steps 3 --baseline-steps 2 --epsilon 0.05)
source "$(dirname "$0")/../training/checks.sh"
source "$(dirname "$0")/../fashion_mnist/make_half.sh"
data=(--data "$dir/data")
mkdir "$dir/data"
make_half "$dir/data/train" 320
make_half "$dir/data/t10k" 60
cat >"$dir/small.json" <<END
{"patch": 14, "depth": 2, "dim": 16, "heads": 2, "experts": 4, "hidden": 16, "batch": 32, "steps": 60, "warmup": 3,
 "lr": 0.01, "valid-images": 60, "log": 1, "validate": 20, "save": 7, "test-images": 40, "attack-steps": 3,
 "baseline-steps": 2, "epsilon": 0.05}
END

check_threads
check_page 1
check_few
for key in test_accuracy fgsm_accuracy pgd_accuracy corrupted_accuracy mean_corruption_error gaussian_noise \
  occlusion; do
  grep -q "\"$key\":" "$dir/1/metrics.jsonl" || fail "metrics lack $key"
done
[ "$(grep -cE '^(gaussian_noise|blur|contrast|brightness|pixelate|occlusion)( +[0-9.]+){6}$' "$dir/1.out")" -eq 6 ] ||
  fail "expected a table of six corruptions with five severities"
! command -v gnuplot >/dev/null || [ "$(grep -c "<svg" "$dir/1/accuracy.svg")" -eq 1 ] ||
  fail "accuracy.svg: expected one picture"
! command -v gnuplot >/dev/null || [ "$(grep -c ">accuracy on validation<" "$dir/1/accuracy.svg")" -eq 2 ] ||
  fail "accuracy.svg: the right axis has no label"
# Both attacks reduce the accuracy.
told() { awk -v what="$1" '$1 == what { print $2 }' "$dir/1.out"; }
awk -v clean="$(told clean)" -v fgsm="$(told fgsm)" -v pgd="$(told pgd)" \
  'BEGIN { exit !(clean > 40 && fgsm < clean && pgd < clean) }' || fail "attacks: $(cat "$dir/1.out")"

# Five pairs of router and update rule give five different models.
for of in "vmoe plain" "vmoe robust" "similarity heavy-ball" "attention heavy-ball" "soft plain"; do
  read -r router update <<<"$of"
  run --run "$dir/$router.$update" --router "$router" --update "$update" --steps 12 || fail "$of: $(cat "$dir/err")"
done
[ "$(cat "$dir"/*.*/state.safetensors | wc -c)" -gt 0 ] &&
  [ "$(for state in "$dir"/*.*/state.safetensors; do sha256sum <"$state"; done | sort -u | wc -l)" -eq 5 ] ||
  fail "expected five different models"

# Random changes of the images and label smoothing: each option changes the run. A run with all of these options has the
# same bytes on 2 threads and after a stop. The command that continues the run need not repeat the options.
changes=(--flip --crop 2 --mixup 0.4 --label-smoothing 0.1)
states=()
for of in "" "--flip" "--crop 2" "--mixup 0.4" "--label-smoothing 0.1"; do
  read -ra options <<<"$of"
  run --run "$dir/with${of// /}" --steps 8 "${options[@]}" || fail "$of: $(cat "$dir/err")"
  states+=("$dir/with${of// /}/metrics.jsonl")
done
[ "$(for state in "${states[@]}"; do grep '"loss"' "$state" | sha256sum; done | sort -u | wc -l)" -eq 5 ] ||
  fail "two options of the images give the same losses"
run --run "$dir/changed" --steps 12 "${changes[@]}" --threads 1 || fail "changed images: $(cat "$dir/err")"
run --run "$dir/changed2" --steps 12 "${changes[@]}" --threads 2 --stop 5 || fail "changed images: $(cat "$dir/err")"
run --run "$dir/changed2" --steps 12 || fail "changed images, gone on: $(cat "$dir/err")"
same_run changed changed2 "changed images on 2 threads, stopped, then gone on"
printf '{"flip": true, "crop": 2, "mixup": 0.4, "label-smoothing": 0.1}' >"$dir/changes.json"
"$program" --config "$dir/changes.json" "${data[@]}" --run "$dir/changed2" "${end[@]}" >"$dir/out" 2>"$dir/err" ||
  fail "the same options in a configuration: $(cat "$dir/err")"

check_resume accuracy
check_signals

# evaluate repeats the report on the best model, without a configuration.
"$program" evaluate --run "$dir/1" "${data[@]}" "${end[@]}" >"$dir/out" 2>"$dir/err" ||
  fail "evaluate: $(cat "$dir/err")"
cmp <(sed -n '/^accuracy/,/^mean/p' "$dir/1.out") <(sed -n '/^accuracy/,/^mean/p' "$dir/out") ||
  fail "evaluate: the report differs from that at the end of the run"

check_full evaluate "${data[@]}" "${end[@]}"
check_refused
refused_json "--patch: 5 not in" '{"patch": 5}'
refused "mu: expected update = heavy-ball, which has this option, got plain" --update plain --mu 0.5
refused "tau: expected router = similarity, which has this option, got soft" --router soft --tau 2
cp -r "$dir/1" "$dir/kept"
refused "tau: expected a value for which 1 / tau is finite" --run "$dir/kept" --fresh --router similarity --tau 1e-300
diff -r "$dir/1" "$dir/kept" || fail "a --fresh that was refused at the first step changed the previous run"
refused "update: expected plain or heavy-ball for the router soft, got robust" --router soft --update robust
[[ ${GATEFOLD_BUILT_FOR-cpu} == cuda ]] ||
  refused "backend: expected cpu, as this program was built without CUDA, got cuda" --backend cuda
refused "depth: expected an even number, got 3" --depth 3
refused "crop: Value 28 not in range" --crop 28
refused "mixup: Value -1 is no number" --mixup -1
refused "label-smoothing: Value 1.5 is no number from 0 to 1" --label-smoothing 1.5
refused "metadata: flip: expected false, as in the run, got true" --run "$dir/1" --flip
refused "train-images: expected batch = 32 to 260, the number that valid-images leaves, got 300" --train-images 300
refused "valid-images: expected at most 288, so that a batch remains of the 320 training images, got 325" \
  --valid-images 325
refused "batch: expected at most 320, the number of training images, got 321" --batch 321
refused "test-images: expected at most 60, the number of test images, got 61" --test-images 61
refused "nowhere/train-images.*neither" --data "$dir/nowhere"
mkdir "$dir/less" && make_half "$dir/less/train" 310 && make_half "$dir/less/t10k" 60
refused "metadata: images: expected the data of the run, got other data" --run "$dir/1" --data "$dir/less"
finish
