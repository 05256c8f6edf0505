#!/usr/bin/env bash
# test_cuda.sh PROGRAM TEXT: a small language model learns the same on a GPU as on the CPU. A run that is stopped and
# continued gives the same bytes, and generation is the same with and without a cache.
program=$1
source "$(dirname "$0")/../training/checks_cuda.sh"
head -c 3000 "$2" >"$dir/text"
cat >"$dir/small.json" <<END
{"blocks": 2, "dim": 16, "heads": 2, "experts": 4, "hidden": 16, "length": 16, "batch": 2, "steps": 8, "warmup": 2,
 "lr": 0.01, "log": 1, "validate": 4, "valid-tokens": 60, "save": 4, "tokens": 10, "order": 2}
END
run() { "$program" --config "$dir/small.json" --text "$dir/text" "$@" >"$dir/out" 2>"$dir/err"; }

# compare NAME TOLERANCE OPTION...: compares the losses of all steps on the CPU and on the GPU.
compare() {
  local backend
  for backend in cpu cuda; do
    run --run "$dir/$1.$backend" --backend $backend "${@:3}" || fail "$1 on $backend: $(cat "$dir/err")"
  done
  close_losses 8 "$2" "$1"
}
for update in heavy-ball adam robust nesterov time-varying plain; do
  compare $update 1e-5 --update $update --lr 1e-3
done
compare glam 1e-5 --layout glam --lr 1e-3
compare memory 1e-5 --lr 1e-3 --accumulate 2 --recompute --expert-dropout 0.1 --dropout 0.1

for backend in cuda cuda-bf16; do
  run --run "$dir/whole.$backend" --backend $backend || fail "$backend: $(cat "$dir/err")"
  for stop in 3 0; do
    run --run "$dir/parts.$backend" --backend $backend --stop $stop || fail "$backend, stopped: $(cat "$dir/err")"
  done
  cmp "$dir/whole.$backend/state.safetensors" "$dir/parts.$backend/state.safetensors" ||
    fail "$backend, continued: the state differs"
  for cache in "" --no-cache; do
    "$program" generate --run "$dir/whole.$backend" --tokens 10 $cache >"$dir/wrote$cache" 2>"$dir/err" ||
      fail "$backend, generate: $(cat "$dir/err")"
  done
  cmp "$dir/wrote" "$dir/wrote--no-cache" || fail "$backend, generate: the text differs without a cache"
done
cmp -s "$dir/whole.cuda/state.safetensors" "$dir/whole.cuda-bf16/state.safetensors" &&
  fail "cuda-bf16: the state is that of cuda"
run --run "$dir/x" --backend cuda-bf16 --update adam && fail "cuda-bf16 accepts an update that it does not have"
grep -q "^language_model: options: backend: expected cpu or cuda for the update adam, got cuda-bf16$" "$dir/err" ||
  fail "expected another message, got: $(cat "$dir/err")"
exit $failed
