#!/usr/bin/env bash
# test.sh PROGRAM FOLDERS: tests generate with the tiny decoders of FOLDERS (tests/golden/decoders).
# - The greedy tokens are those of transformers, in expected.safetensors.
# - The last token is a stop token of the command line or of the folder. Several prompts give the tokens of each prompt.
# - Drawn tokens depend on the seed and not on the number of threads.
# - A trained decoder is saved in the format of the folder. A run that continues from a checkpoint gives the same bytes.
# - Wrong folders and options give one line and exit code 2.
program=$1 folders=$2
source "$(dirname "$0")/../checks.sh"

# numbers FILE TENSOR COUNT: prints the first integers of a tensor of a safetensors file, on one line.
numbers() {
  local header begin
  header=$(od -An -t u8 -N 8 "$1" | tr -d ' ')
  begin=$(head -c $((8 + header)) "$1" | tail -c "$header" |
    sed -E "s/.*\"$2\":\{[^}]*\"data_offsets\":\[([0-9]+),.*/\1/")
  od -An -v -t d8 -w8 -j $((8 + header + begin)) -N $((8 * $3)) "$1" | xargs
}
# run OPTION...: runs the program; its tokens are in $dir/out.
run() { "$program" "$@" >"$dir/out" 2>"$dir/err" || fail "$*: $(cat "$dir/err")"; }
# refused TEXT OPTION...: the program must end with exit code 2, and its last line must contain TEXT.
refused() {
  local text=$1 code=0
  shift
  "$program" "$@" >"$dir/out" 2>"$dir/err" || code=$?
  [ $code -eq 2 ] || fail "$*: exit code $code instead of 2"
  tail -n 1 "$dir/err" | grep -qF -- "$text" || fail "$*: expected \"$text\", got \"$(tail -n 1 "$dir/err")\""
}

for name in mixtral qwen2_moe deepseek_v2 deepseek_v3 gpt_oss gpt_oss_mxfp4 llama4_text llama4; do
  golden=$folders/$name/expected.safetensors
  ids=$(numbers "$golden" ids 11) expected=$(numbers "$golden" greedy 64)
  for more in "" "--weights float --threads 2"; do
    run --model "$folders/$name" --prompt-ids "${ids// /,}" --tokens 64 --stop-ids -1 $more
    [ "$(cat "$dir/out")" = "$expected" ] || fail "$name $more: expected $expected, got $(cat "$dir/out")"
  done
done

# expect_line TEXT: the program must have printed this line.
expect_line() { [ "$(cat "$dir/out")" = "$1" ] || fail "expected $1, got $(cat "$dir/out")"; }
# until_stop STOP... <TOKENS: prints the tokens up to the first that is one of STOP.
until_stop() { awk -v stop=" $* " '{ for (i = 1; i <= NF; ++i) {
  printf "%s%s", (i == 1 ? "" : " "), $i; if (index(stop, " " $i " ")) break } print "" }'; }
golden=$folders/gpt_oss/expected.safetensors
ids=$(numbers "$golden" ids 22) tokens=$(numbers "$golden" greedy 64)
first=$(echo "$tokens" | cut -d ' ' -f 5) second=$(echo "$tokens" | cut -d ' ' -f 20)
mkdir "$dir/stop"
cp "$folders/gpt_oss"/{config.json,model.safetensors} "$dir/stop"
stop=(--model "$dir/stop" --tokens 64 --prompt-ids "$(echo "$ids" | cut -d ' ' -f 1-11 | tr ' ' ,)")
run "${stop[@]}" --stop-ids "$first"
expect_line "$(echo "$tokens" | until_stop "$first")"
run "${stop[@]}"
expect_line "$(echo "$tokens" | until_stop 2)"  # 2 is the eos_token_id in config.json
echo "{\"eos_token_id\": [$first, $second]}" >"$dir/stop/generation_config.json"
run "${stop[@]}"
expect_line "$(echo "$tokens" | until_stop "$first" "$second")"
echo '{"eos_token_id": null}' >"$dir/stop/generation_config.json"
run "${stop[@]}" --stop-ids -1
expect_line "$tokens"
refused "options: stop-ids: expected ids from 0 to 36, got 37" "${stop[@]}" --stop-ids 1,37
echo '{"eos_token_id": ["</s>"]}' >"$dir/stop/generation_config.json"
refused 'generation_config.json: eos_token_id: expected an integer or a list of integers, got ["</s>"]' "${stop[@]}"
echo '[]' >"$dir/stop/generation_config.json"
refused 'generation_config.json: expected a JSON object' "${stop[@]}"

both=(--model "$folders/mixtral" --tokens 6 --stop-ids -1)
one=$("$program" "${both[@]}" --prompt-ids 3,1,4 2>/dev/null)
other=$("$program" "${both[@]}" --prompt-ids 5 2>/dev/null)
printf '3 1 4\n5\n' >"$dir/prompts"
for more in "" "--weights float"; do
  run "${both[@]}" --prompts "$dir/prompts" $more
  expect_line "$one
$other"
done
printf '3 1\n\n' >"$dir/prompts"
refused 'options: prompts: expected ids in each line, got line 2: ""' "${both[@]}" --prompts "$dir/prompts"
echo '3 x' >"$dir/prompts"
refused 'options: prompts: expected ids in each line, got line 1: "3 x"' "${both[@]}" --prompts "$dir/prompts"
: >"$dir/prompts"
refused 'options: prompts: expected a file with a prompt in each line, got no line' "${both[@]}" \
  --prompts "$dir/prompts"
echo 37 >"$dir/prompts"
refused 'options: prompts: expected ids from 0 to 36, got 37' "${both[@]}" --prompts "$dir/prompts"

model=(--model "$folders/mixtral" --tokens 40 --stop-ids -1)
drawn() { run "${model[@]}" --temperature 2 --top-k 20 --top-p 0.95 "$@"; cat "$dir/out"; }
first=$(drawn --seed 1 --threads 1)
[ "$(drawn --seed 1 --threads 2)" = "$first" ] || fail "the tokens on 2 threads differ"
[ "$(drawn --seed 2 --threads 1)" != "$first" ] || fail "another seed gives the same tokens"
for form in bfloat16 int8 int4 mxfp4; do run "${model[@]}" --weights $form; done
# A file of packed weights gives the same tokens, without model.safetensors.
mkdir "$dir/config"
for name in mixtral qwen2_moe; do
  cp "$folders/$name/config.json" "$dir/config"
  run --model "$folders/$name" --tokens 40 --stop-ids -1 --weights int8 --save-frozen "$dir/int8"
  packed=$(cat "$dir/out")
  run --model "$dir/config" --tokens 40 --stop-ids -1 --frozen "$dir/int8"
  expect_line "$packed"
  run --model "$folders/$name" --tokens 40 --stop-ids -1 --weights int8 --save-frozen "$dir/mapped" --mappable
  run --model "$dir/config" --tokens 40 --stop-ids -1 --frozen "$dir/mapped"
  expect_line "$packed"
done
refused "$folders/mixtral/model.safetensors: tensor " --model "$folders/mixtral" \
  --frozen "$folders/mixtral/model.safetensors"
refused "--weights" --model "$dir/config" --frozen "$dir/int8" --weights int8
# Weights of a folder in MXFP4 keep their values; only the items are rounded.
run --model "$folders/gpt_oss_mxfp4" --weights mxfp4
run
[ "$(wc -w <"$dir/out")" -eq 32 ] || fail "a random decoder: expected 32 tokens, got $(cat "$dir/out")"

numbers "$folders/mixtral/expected.safetensors" ids 22 >"$dir/ids"
train() {
  run "${model[@]}" --train "$dir/ids" --length 7 --lr 0.01 --checkpoint "$dir/$1.state" --save "$dir/$1" "${@:2}"
}
train whole --steps 12
whole=$(cat "$dir/out")
train parts --steps 5
train parts --steps 12 --threads 1
cmp "$dir/whole/model.safetensors" "$dir/parts/model.safetensors" || fail "the parameters of a continued run differ"
cmp "$dir/whole/config.json" "$folders/mixtral/config.json" || fail "the saved config.json differs"
run --model "$dir/whole" --tokens 40 --stop-ids -1
[ "$(cat "$dir/out")" = "$whole" ] || fail "the saved decoder: expected $whole, got $(cat "$dir/out")"
# A folder with quantised weights is saved with the same quantisation.
mkdir "$dir/four_bits"
cp "$folders/gpt_oss_mxfp4/model.safetensors" "$dir/four_bits"
sed '2i\  "quantization_config": {"quant_method": "mxfp4"},' "$folders/gpt_oss_mxfp4/config.json" \
  >"$dir/four_bits/config.json"
run --model "$dir/four_bits" --save "$dir/again"
for file in config.json model.safetensors; do
  cmp "$dir/four_bits/$file" "$dir/again/$file" || fail "the saved $file of four bits differs"
done
before=$(cat "$dir/out")
run --model "$dir/again"
expect_line "$before"
# Trains only the gates: only bytes of their two tensors of 40 floats may change.
train gates --steps 3 --only block_sparse_moe.gate
run --model "$folders/mixtral" --train "$dir/ids" --steps 1 --only lm_head --save "$dir/same" --lr 1e-30 --tokens 0
changed=$(cmp -l "$dir/gates/model.safetensors" "$dir/same/model.safetensors" | wc -l)
((changed > 0 && changed <= 2 * 40 * 4)) || fail "training only the gates changed $changed bytes"

refused "$dir/none/config.json: cannot open" --model "$dir/none"
refused "options: prompt-ids: expected ids from 0 to 36, got 37" "${model[@]}" --prompt-ids 1,37
refused "options: only: expected a part of a name" "${model[@]}" --train "$dir/ids" --only router
refused "options: save: expected another folder" --model "$dir/whole" --save "$dir/whole"
echo "1 2 x" >"$dir/text"
refused "options: train: expected a file of at least 2 ids, got 2 ids before other text" --train "$dir/text"
echo 1 >"$dir/text"
refused "options: train: expected a file of at least 2 ids, got 1 ids" --train "$dir/text"
exit $failed
